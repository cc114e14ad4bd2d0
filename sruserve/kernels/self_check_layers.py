"""Check, before such a model is served, that a GPU's gated layers and attention are right."""

from dataclasses import replace

import torch
from torch import Tensor

from sruserve.kernels.attention import Attention, attend
from sruserve.kernels.devices import CPU
from sruserve.kernels.fused_gated import FusedGatedLayer
from sruserve.kernels.gated_cell import GatedCell, GatedKind
from sruserve.kernels.oom import is_out_of_memory
from sruserve.kernels.panel_weight import PanelWeight
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.reference.attention import reference_attention
from sruserve.kernels.reference.gated import reference_gated_scan
from sruserve.kernels.self_check import TOLERANCE, KernelMismatch

_LENGTHS = (5, 1, 0, 23)
_WIDTH, _WINDOW = 40, 9
_KINDS = (GatedKind.LSTM, GatedKind.GRU, GatedKind.RNN_TANH, GatedKind.RNN_RELU)

Results = dict[str, Tensor]


def check_other_layers(device: torch.device, dtype: torch.dtype) -> None:
    """Compare attention and gated layers, over sequences and in a step, with their definitions.

    Raises `KernelMismatch`, or `torch.OutOfMemoryError`.
    """
    name = str(dtype).removeprefix("torch.")
    try:
        pairs = [_attention(device, dtype), *(_gated(kind, device, dtype) for kind in _KINDS)]
    except Exception as error:
        if is_out_of_memory(error):
            raise torch.OutOfMemoryError(str(error)) from error
        raise KernelMismatch(f"the kernels do not run in {name}: {error}") from error
    for results, references in pairs:
        for what, expected in references.items():
            difference = float((results[what].float().cpu() - expected).abs().max())
            if not difference <= TOLERANCE[dtype]:  # also true for NaN
                raise KernelMismatch(
                    f"the {what} in {name} differ from the reference by {difference:.3g}; "
                    f"rounding allows {TOLERANCE[dtype]:g}"
                )


def _attention(device: torch.device, dtype: torch.dtype) -> tuple[Results, Results]:
    """Attend from streams that begin and that continue, then one step of each."""
    generator, rows = torch.Generator().manual_seed(1), sum(_LENGTHS)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).to(dtype).float()

    ring = _WINDOW * 4 * _WIDTH
    states = random(len(_LENGTHS), ring + 1)
    states[:, ring] = torch.tensor([3.0, 12.0, 0.0, 17.0])
    tensors = [random(rows, n * _WIDTH) for n in (1, 2, 1, 2)]
    attention = Attention(window=_WINDOW, heads=2)
    outcomes = []
    for place, form, run in ((device, dtype, attend), (CPU, torch.float32, reference_attention)):
        q, keys_values, residual, memory = (each.to(place, form) for each in tensors)
        batch = _batch(states.to(place, copy=True), _LENGTHS)
        h = run(q, keys_values, residual, batch, attention, memory)
        few = len(_LENGTHS)
        each = replace(batch, offsets=torch.arange(few + 1).to(place), source=batch.target)
        arguments = (q[:few], keys_values[:few], residual[:few], each, attention, memory[:few])
        options = {"one_step": True} if run is attend else {}
        step = run(*arguments, **options)  # type: ignore[arg-type]
        outcomes.append(
            {"outputs of attention": h, "steps of attention": step, "rings": batch.states}
        )
    return outcomes[0], outcomes[1]


def _gated(kind: GatedKind, device: torch.device, dtype: torch.dtype) -> tuple[Results, Results]:
    """Run a layer over sequences, then one step of each stream."""
    generator, gates = torch.Generator().manual_seed(2), kind.blocks * _WIDTH

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator).div_(size[-1] ** 0.5).to(dtype).float()

    tensors = [random(gates, _WIDTH), random(gates, _WIDTH), random(gates), random(gates)]
    x, states = random(sum(_LENGTHS), _WIDTH) * 4, random(len(_LENGTHS), 2 * _WIDTH)
    layer = FusedGatedLayer.of(kind, [tensors], 0, _WIDTH, dtype, device)
    batch = _batch(states.to(device, copy=True), _LENGTHS)
    inputs, few = x.to(device, dtype), len(_LENGTHS)
    h = layer(inputs, batch)
    step = layer.step(inputs[:few], batch.states, batch.target, batch.target)
    weight, recurrent, bias, late = tensors
    cell = GatedCell(
        kind=kind,
        first=PanelWeight.of(recurrent, late, kind.blocks),
        column=0,
        cell_column=_WIDTH,
    )
    own = _batch(states, _LENGTHS)
    expected = [torch.empty(len(x), _WIDTH), torch.empty(few, _WIDTH)]
    u = x @ weight.T + bias
    reference_gated_scan(u, cell, own, expected[0])
    each = replace(own, offsets=torch.arange(few + 1), source=own.target)
    reference_gated_scan(u[:few], cell, each, expected[1])
    names = [f"{what} of {kind.name}" for what in ("outputs", "steps", "states")]
    return (
        dict(zip(names, (h, step, batch.states), strict=True)),
        dict(zip(names, (*expected, own.states), strict=True)),
    )


def _batch(states: Tensor, lengths: tuple[int, ...]) -> RaggedBatch:
    """Streams that continue in place, but for the second, which begins."""
    rows = torch.arange(len(lengths)).to(states.device)
    offsets = torch.tensor([0, *lengths]).cumsum(0).to(states.device)
    return RaggedBatch(offsets, states, torch.where(rows == 1, -1, rows), rows)
