"""The other families against a baseline: LSTM and GRU against torch.nn, the rest against SRU."""

from collections.abc import Callable

import torch
from torch import Tensor

from bench.cpu.matched_models import TOLERANCE, Disagreement, Shape
from bench.report.report import Report
from bench.report.samples import interleave
from bench.report.targets import Target
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
    report.progress(case)
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
    samples = interleave({f"torch.nn {family}": theirs, f"ours {family}": ours}, rounds)
    report.add_case(case, samples)
    value = samples[f"ours {family}"].over(samples[f"torch.nn {family}"]).median
    report.check(f"{case}: ours / torch.nn", value, "x", ratio)


def compare_with_sru(report: Report, shape: Shape, rounds: int, ratio: Target) -> None:
    """Measure the element-wise families at equal size; ratio: the target of (theirs / SRU's)."""
    case = f"families {shape}"
    report.progress(case)
    torch.manual_seed(_SEED)
    x = torch.randn(shape.steps, shape.batch, shape.width)
    candidates = {}
    for family in ("sru", "lrn", "qrnn"):
        config = _config(family, shape)
        weights = {k: torch.randn(size) * 0.04 for k, size in config.shapes().items()}
        candidates[family] = _run(_network(config, weights), x)
    samples = interleave(candidates, rounds)
    report.add_case(case, samples)
    for family in ("lrn", "qrnn"):
        value = samples[family].over(samples["sru"]).median
        report.check(f"{case}: {family} / sru", value, "x", ratio)


def _config(family: str, shape: Shape) -> StackConfig:
    sizes = {
        "input_size": shape.width,
        "hidden_size": shape.width,
        "num_layers": shape.layers,
    }
    return FAMILIES[family].model_validate(sizes)


def _network(config: StackConfig, tensors: dict[str, Tensor]) -> Network:
    description = ModelConfig(
        architectures=(architecture(config, "encode"),),
        model_type=config.family,
        task="encode",
        vocab_size=None,
        rnn=config,
    )
    network = Network(description, {f"rnn.{k}": t for k, t in tensors.items()}, torch.float32)
    network.warm_up()
    return network


def _run(network: Network, x: Tensor) -> Callable[[], Tensor]:
    """Return a call over whole sequences that start from zeros. x: (L, B, d)."""
    steps, sequences, _ = x.shape
    packed = x.transpose(0, 1).flatten(0, 1).contiguous()
    offsets, rows = torch.arange(sequences + 1) * steps, torch.arange(sequences)
    states = network.layout.allocate(sequences)
    batch = RaggedBatch(offsets, states, torch.full_like(rows, -1), rows)
    return lambda: network.hidden(packed, batch)
