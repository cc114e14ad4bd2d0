"""Our stack against `sru` 2.6.0 and against its own matrix products."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from bench.cpu.matched_models import MatchedModels, Shape
from bench.cpu.time_breakdown import matrix_products_alone, split
from bench.report.report import Report
from bench.report.samples import interleave
from bench.report.targets import NO_TARGET, Target
from sruserve.model.network import Network


def against_sru(
    report: Report,
    shape: Shape,
    rounds: int,
    faster: Mapping[str, Target],
    products_targets: Mapping[str, Target],
) -> None:
    """Measure one shape, after a check that both compute the same; raises `Disagreement`.

    faster, products_targets: by our dtype, the targets of (time of sru / ours) and of (ours / its
    products alone). `sru` always computes in float32, the only dtype of its CPU kernel.
    """
    carries = shape.steps == 1  # a stream's next step continues from its state
    case = f"{'one step' if carries else 'stack'} {shape}"
    report.progress(case)
    models = MatchedModels(shape)
    models.check()
    networks = {
        "float32": models.network(torch.float32),
        "bfloat16": models.network(torch.bfloat16),
    }
    our_runs = {name: ours(models, network, not carries) for name, network in networks.items()}
    candidates: dict[str, Callable[[], object]] = {"sru float32": theirs(models, carries)}
    for name, network in networks.items():
        candidates[f"ours {name}"] = our_runs[name]
        candidates[f"products {name}"] = matrix_products_alone(models, network)
    samples = interleave(candidates, rounds)
    report.add_case(case, samples)
    for name, network in networks.items():
        report.add_case(f"{case} {name}: parts", split(network, our_runs[name], rounds))
        ratio = samples["sru float32"].over(samples[f"ours {name}"]).median
        report.check(f"{case}: sru float32 / ours {name}", ratio, "x", faster.get(name, NO_TARGET))
        ratio = samples[f"ours {name}"].over(samples[f"products {name}"]).median
        label = f"{case}: ours {name} / its products alone"
        report.check(label, ratio, "x", products_targets.get(name, NO_TARGET))


def ours(models: MatchedModels, network: Network, begin: bool) -> Callable[[], Tensor]:
    """Return a call of our network; begin: from zeros, not from the states of the last call."""
    batch = models.batch(network, begin)
    return lambda: network.hidden(models.packed, batch)


def theirs(models: MatchedModels, carries: bool) -> Callable[[], object]:
    """Return a call of `sru`; carries: from the states of the last call, not from zeros."""
    shape = models.shape
    state = torch.zeros(shape.layers, shape.batch, shape.width) if carries else None

    @torch.inference_mode()
    def run() -> None:
        nonlocal state
        _, end = models.theirs(models.x, state)
        if carries:
            state = end

    return run
