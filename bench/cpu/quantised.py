"""int8 weights against bfloat16 ones and against `sru` 2.6.0 in float32."""

from collections.abc import Callable

import torch

from bench.cpu.against_sru import ours, theirs
from bench.cpu.matched_models import MatchedModels, Shape
from bench.report.report import Report
from bench.report.samples import interleave
from bench.report.targets import Target


def quantised(report: Report, shape: Shape, rounds: int, over: str, target: Target) -> None:
    """Measure one shape with int8 weights, after a check of the float32 ones.

    over: the candidate with which the target compares us, "sru float32" or "ours bfloat16".
    Raises `Disagreement`.
    """
    carries = shape.steps == 1
    case = f"int8, {'one step' if carries else 'stack'} {shape}"
    report.progress(case)
    models = MatchedModels(shape)
    models.check()
    candidates: dict[str, Callable[[], object]] = {
        "sru float32": theirs(models, carries),
        "ours float32": ours(models, models.network(torch.float32), not carries),
        "ours bfloat16": ours(models, models.network(torch.bfloat16), not carries),
        "ours int8": ours(models, models.int8_network(), not carries),
    }
    samples = interleave(candidates, rounds)
    report.add_case(case, samples)
    ratio = samples[over].over(samples["ours int8"]).median
    report.check(f"{case}: {over} / ours int8", ratio, "x", target)
