"""Other families beside what they are measured by: LSTM and GRU by torch.nn, the rest by SRU."""

from collections.abc import Callable

import torch
from torch import Tensor

from bench.report import Report
from bench.samples import interleave
from bench.targets import Target
from bench.twins import TOLERANCE, Disagreement, Shape
from sruserve.kernels import RaggedBatch
from sruserve.model.cells import FAMILIES
from sruserve.model.cells.stack import StackConfig
from sruserve.model.config import ModelConfig, architecture
from sruserve.model.network import Network

_MODULES = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}
_SEED = 1


def against_torch(report: Report, family: str, shape: Shape, rounds: int, ratio: Target) -> None:
    """Measure whole inputs in float32, after a check that both compute the same.

    ratio: the target of (our time / torch's). Raises `Disagreement`.
    """
    case = f"{family} {shape}"
    report.doing(case)
    torch.manual_seed(_SEED)
    module = _MODULES[family](shape.width, shape.width, shape.layers).eval()
    network = _network(_config(family, shape), module.state_dict())
    x = torch.randn(shape.steps, shape.batch, shape.width)
    ours = _run(network, x)

    @torch.inference_mode()
    def theirs() -> Tensor:
        h: Tensor = module(x)[0]
        return h

    difference = float((ours() - theirs().transpose(0, 1).flatten(0, 1)).abs().max())
    if not difference <= TOLERANCE:
        raise Disagreement(f"{case}: ours and torch.nn differ by {difference:.3g}")
    found = interleave({f"torch.nn {family}": theirs, f"ours {family}": ours}, rounds)
    report.measured(case, found)
    value = found[f"ours {family}"].over(found[f"torch.nn {family}"]).median
    report.check(f"{case}: ours / torch.nn", value, "x", ratio)


def beside_sru(report: Report, shape: Shape, rounds: int, ratio: Target) -> None:
    """Measure the element-wise families at equal size; ratio: the target of (theirs / SRU's)."""
    case = f"families {shape}"
    report.doing(case)
    torch.manual_seed(_SEED)
    x = torch.randn(shape.steps, shape.batch, shape.width)
    candidates = {}
    for family in ("sru", "lrn", "qrnn"):
        config = _config(family, shape)
        weights = {k: torch.randn(size) * 0.04 for k, size in config.shapes().items()}
        candidates[family] = _run(_network(config, weights), x)
    found = interleave(candidates, rounds)
    report.measured(case, found)
    for family in ("lrn", "qrnn"):
        value = found[family].over(found["sru"]).median
        report.check(f"{case}: {family} / sru", value, "x", ratio)


def _config(family: str, shape: Shape) -> StackConfig:
    sizes = {
        "input_size": shape.width,
        "hidden_size": shape.width,
        "num_layers": shape.layers,
    }
    return FAMILIES[family].model_validate(sizes)


def _network(config: StackConfig, tensors: dict[str, Tensor]) -> Network:
    described = ModelConfig(
        architectures=(architecture(config, "encode"),),
        model_type=config.family,
        task="encode",
        vocab_size=None,
        rnn=config,
    )
    network = Network(described, {f"rnn.{k}": t for k, t in tensors.items()}, torch.float32)
    network.warm_up()
    return network


def _run(network: Network, x: Tensor) -> Callable[[], Tensor]:
    """A call over whole sequences from zeros. x: (L, B, d)."""
    steps, sequences, _ = x.shape
    packed = x.transpose(0, 1).flatten(0, 1).contiguous()
    offsets, rows = torch.arange(sequences + 1) * steps, torch.arange(sequences)
    states = network.layout.allocate(sequences)
    batch = RaggedBatch(offsets, states, torch.full_like(rows, -1), rows)
    return lambda: network.hidden(packed, batch)
