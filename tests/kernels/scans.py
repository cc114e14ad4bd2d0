"""Random layers and ragged batches for the tests of scan kernels."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import sruserve.kernels.cpu.library as cpu
from sruserve.kernels.cell import Activation, Cell, Kind
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.reference.scan import reference_scan

INF, NAN = float("inf"), float("nan")
Scan = Callable[..., Tensor]

TANH, RELU, SELU = Activation.TANH, Activation.RELU, Activation.SELU
SRU_VARIANTS: dict[str, dict[str, Any]] = {
    "residual": {"scale": 1.3},
    "highway-block": {"blocks": 4},
    "no-skip": {"skip": False},
    "tanh": {"activation": TANH},
    "updated-reset": {"updated_reset": True},
    "bidirectional": {"backward_from": 0.5},
    "backward": {"backward_from": 0, "blocks": 4},
    "everything": {"scale": 0.7, "activation": TANH, "updated_reset": True, "backward_from": 0.25},
}
KIND_VARIANTS: dict[str, dict[str, Any]] = {
    "relu": {"activation": RELU},
    "selu": {"activation": SELU},
    "lrn": {"kind": Kind.LRN, "activation": TANH},
    "lrn-identity-both-ways": {"kind": Kind.LRN, "backward_from": 0.5},
    "olrn": {"kind": Kind.LRN, "blocks": 4, "activation": TANH},
    "qrnn": {"kind": Kind.QRNN, "blocks": 2, "zoneout": 0.3},
    "qrnn-output-gate": {"kind": Kind.QRNN, "skip": False},
    "qrnn-residual": {"kind": Kind.QRNN, "scale": 1.3, "zoneout": 0.1},
    "qrnn-highway-block": {"kind": Kind.QRNN, "blocks": 4, "backward_from": 0},
    "sum": {"kind": Kind.SUM, "blocks": 1},
    "max": {"kind": Kind.MAX, "blocks": 2},
    "shift": {"kind": Kind.SHIFT, "blocks": 1},
    "decay": {"kind": Kind.DECAY, "blocks": 2},
}
VARIANTS = SRU_VARIANTS | KIND_VARIANTS


@dataclass(frozen=True)
class Case:
    """The arguments of one call, which `run` does not change."""

    u: Tensor
    residual: Tensor | None
    weight_c: Tensor | None
    bias: Tensor | None
    batch: RaggedBatch
    column: int
    cell: Cell
    options: dict[str, Any]

    @property
    def width(self) -> int:
        return self.u.shape[1] // self.cell.blocks

    def arguments(self) -> tuple[Any, ...]:
        """The positional arguments of a scan."""
        gates = (self.weight_c, self.bias)
        return (self.u, self.residual, *gates, self.batch, self.column, self.cell)

    def run(self, scan: Scan = cpu.cpu_scan) -> tuple[Tensor, Tensor]:
        """Returns h and the states after the call."""
        batch = replace(self.batch, states=self.batch.states.clone())
        return scan(*replace(self, batch=batch).arguments(), **self.options), batch.states

    def expected(self) -> tuple[Tensor, Tensor]:
        """The definition's result, computed in float32 on the CPU."""
        residual = None if self.residual is None else self.residual.float()
        h, states = replace(self, u=self.u.float(), residual=residual).to("cpu").run(reference_scan)
        return h.to(self.u), states.to(self.u.device)

    def to(self, device: torch.device | str) -> "Case":
        batch = self.batch
        return replace(
            self,
            u=self.u.to(device),
            residual=None if self.residual is None else self.residual.to(device),
            weight_c=None if self.weight_c is None else self.weight_c.to(device),
            bias=None if self.bias is None else self.bias.to(device),
            batch=RaggedBatch(
                batch.offsets.to(device),
                batch.states.to(device),
                batch.source.to(device),
                batch.target.to(device),
            ),
        )

    def channels(self, first: int, end: int) -> "Case":
        """The same layer with these channels only."""
        blocks = self.u.view(len(self.u), -1, self.width)[:, :, first:end]
        options = dict(self.options)
        if (split := options.get("backward_from")) is not None:
            options["backward_from"] = min(max(split - first, 0), end - first)
        return Case(
            blocks.flatten(1).contiguous(),
            None if self.residual is None else self.residual[:, first:end].contiguous(),
            None if self.weight_c is None else self.weight_c[:, first:end].contiguous(),
            None if self.bias is None else self.bias[:, first:end].contiguous(),
            self.batch,
            self.column + first,
            self.cell,
            options,
        )

    def rows(self, first: int, end: int, batch: RaggedBatch) -> "Case":
        """These packed rows only, divided by `batch`."""
        residual = None if self.residual is None else self.residual[first:end]
        return replace(self, u=self.u[first:end], residual=residual, batch=batch)

    def alone(self, sequence: int) -> "Case":
        """One sequence without the others."""
        batch, place = self.batch, slice(sequence, sequence + 1)
        offsets = batch.offsets[sequence : sequence + 2]
        first, end = offsets.tolist()
        part = RaggedBatch(offsets - first, batch.states, batch.source[place], batch.target[place])
        return self.rows(first, end, part)


def case(
    width: int,
    lengths: list[int],
    *,
    blocks: int = 3,
    skip: bool = True,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
    backward_from: float | None = None,
    **options: Any,
) -> Case:
    """A random layer and batch: sequence 0 runs in place, 1 starts from zeros, 2 is dropped.

    options: of the cell. skip: with a residual where the cell takes one.
    backward_from: a channel, or as a float a part of the width.
    """
    g = torch.Generator().manual_seed(seed)
    rows, n = sum(lengths), len(lengths)
    direction: dict[str, Any] = {}
    source = torch.arange(n) * 2
    target = source + 1
    target[:1] = source[:1]
    source[1:2] = -1
    target[2:3] = -1
    if isinstance(backward_from, float):
        backward_from = int(width * backward_from)
    if backward_from is not None:
        direction["backward_from"] = backward_from
    cell = Cell(blocks=blocks, **options)
    u = torch.randn(rows, blocks * width, generator=g).to(dtype)
    if cell.kind is Kind.MAX:
        u[:, width:] = (u[:, width:] > -1).to(dtype)  # begin anew here and there
    residual = torch.randn(rows, width, generator=g).to(dtype)
    weight_c, bias = torch.randn(2, width, generator=g) * 0.5, torch.randn(2, width, generator=g)
    return Case(
        u,
        residual if skip and cell.takes_residual else None,
        weight_c if cell.gated_by_state else None,
        bias if cell.gated_by_state else None,
        RaggedBatch(
            torch.tensor([0, *lengths]).cumsum(0),
            torch.randn(2 * n, width + 8, generator=g),
            source,
            target,
        ),
        5,
        cell,
        direction,
    ).to(device)


def one_step(scan: Scan, u: Tensor, c: Tensor, *, tanh: bool) -> tuple[Tensor, Tensor]:
    """h and the new c of one row of `u`, without weights, biases or a skip term."""
    zeros, row = c.new_zeros(2, len(c)), torch.zeros(1, dtype=torch.int64, device=c.device)
    states, offsets = c[None].clone(), torch.tensor([0, 1], device=c.device)
    batch = RaggedBatch(offsets, states, row, row)
    cell = Cell(activation=TANH) if tanh else Cell()
    return scan(u[None], None, zeros, zeros, batch, 0, cell)[0], states[0]


def assert_exact_gates(scan: Scan, points: int, device: torch.device | str) -> None:
    """sigmoid and tanh agree with those of float64 to a few roundings, in every range."""
    x = torch.cat([torch.linspace(-120, 120, points), torch.linspace(-1, 1, points)]).to(device)
    # With z = 0 and c = 1, the new c is the forget gate.
    _, gate = one_step(scan, torch.cat([0 * x, x, x]), torch.ones_like(x), tanh=False)
    expected = torch.sigmoid(x.double())
    assert (gate - expected).abs().max() < 5e-7
    assert (gate / expected - 1)[x > -87].abs().max() < 1e-5  # below, the gate is subnormal
    # With both gates open, h is tanh(c).
    c = torch.cat([x / 6, torch.logspace(-37, 0, points, device=device)])
    opened = torch.full_like(c, INF)
    h, _ = one_step(scan, torch.cat([0 * c, opened, opened]), c, tanh=True)
    assert (h / torch.tanh(c.double()) - 1).nan_to_num().abs().max() < 1e-6


def spoil(tensor: Tensor, kind: Kind = Kind.SRU) -> None:
    """Put NaN and both infinities in a tenth of the places; for LRN, NaN alone.

    LRN's gates meet in one division, where 0 and infinity of the definition are a tiny number
    and infinity.
    """
    hit = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(1)) < 0.1
    put = [NAN] if kind is Kind.LRN else [NAN, INF, -INF]
    values = torch.tensor(put, dtype=tensor.dtype).repeat(tensor.numel())
    tensor[hit] = values[: int(hit.sum())]


def assert_same_bits(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype is b.dtype
        assert torch.equal(a, b)


def assert_same_pattern(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        for same in (torch.isnan, torch.isposinf, torch.isneginf):
            assert torch.equal(same(a.float()), same(b.float()))
