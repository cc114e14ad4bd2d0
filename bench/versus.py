"""Our stack beside `sru` 2.6.0 and beside its own matrix products."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from bench.parts import products_alone, split
from bench.report import Report
from bench.samples import interleave
from bench.targets import TOLD, Target
from bench.twins import Shape, Twins
from sruserve.model.network import Network


def against_sru(
    report: Report,
    shape: Shape,
    rounds: int,
    faster: Mapping[str, Target],
    beside_products: Mapping[str, Target],
) -> None:
    """Measure one shape, after a check that both compute the same; raises `Disagreement`.

    faster, beside_products: by our dtype, the targets of (time of sru / ours) and of (ours / its
    products alone). `sru` computes in float32 whatever ours does: its CPU kernel knows no other.
    """
    carries = shape.steps == 1  # a stream's next step goes on from its state
    case = f"{'one step' if carries else 'stack'} {shape}"
    report.doing(case)
    twins = Twins(shape)
    twins.check()
    networks = {"float32": twins.network(torch.float32), "bfloat16": twins.network(torch.bfloat16)}
    ours = {name: _ours(twins, network, not carries) for name, network in networks.items()}
    candidates: dict[str, Callable[[], object]] = {"sru float32": _theirs(twins, carries)}
    for name, network in networks.items():
        candidates[f"ours {name}"] = ours[name]
        candidates[f"products {name}"] = products_alone(twins, network)
    found = interleave(candidates, rounds)
    report.measured(case, found)
    for name, network in networks.items():
        report.measured(f"{case} {name}: parts", split(network, ours[name], rounds))
        ratio = found["sru float32"].over(found[f"ours {name}"]).median
        report.check(f"{case}: sru float32 / ours {name}", ratio, "x", faster.get(name, TOLD))
        ratio = found[f"ours {name}"].over(found[f"products {name}"]).median
        what = f"{case}: ours {name} / its products alone"
        report.check(what, ratio, "x", beside_products.get(name, TOLD))


def _ours(twins: Twins, network: Network, begin: bool) -> Callable[[], Tensor]:
    batch = twins.batch(network, begin)
    return lambda: network.hidden(twins.packed, batch)


def _theirs(twins: Twins, carries: bool) -> Callable[[], object]:
    shape = twins.shape
    state = torch.zeros(shape.layers, shape.batch, shape.width) if carries else None

    @torch.inference_mode()
    def run() -> None:
        nonlocal state
        _, end = twins.theirs(twins.x, state)
        if carries:
            state = end

    return run
