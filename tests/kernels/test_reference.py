"""The definition agrees with each family's equations, written out for one number at a time."""

from math import exp, tanh
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sruserve.kernels.cell import Activation, Cell, Kind
from sruserve.kernels.ragged import single
from sruserve.kernels.reference.scan import reference_scan

Step = tuple[float, float]  # h and the new state


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x))


def activated(x: float, activation: Activation) -> float:
    if activation is Activation.TANH:
        return tanh(x)
    if activation is Activation.RELU:
        return max(x, 0.0)
    if activation is Activation.SELU:
        return 1.0507009873554805 * (x if x > 0 else 1.6732632423543773 * (exp(x) - 1))
    return x


def sru(cell: Cell, u: list[float], x: float | None, c: float, gates: list[float]) -> Step:
    w_f, w_r, b_f, b_r = gates
    f = sigmoid(u[1] + w_f * c + b_f)
    new = f * c + (1 - f) * u[0]
    r = sigmoid(u[2] + w_r * (new if cell.updated_reset else c) + b_r)
    x = u[3] if cell.blocks == 4 else 0.0 if x is None else x * cell.scale
    return r * activated(new, cell.activation) + (1 - r) * x, new


def lrn(cell: Cell, u: list[float], x: float | None, h: float, gates: list[float]) -> Step:
    forgotten_h = sigmoid(u[1] - h) * h
    c = activated(sigmoid(u[0] + h) * u[2] + forgotten_h, cell.activation)
    h = sigmoid(u[3] - c) * c if cell.blocks == 4 else c
    return h, h


def qrnn(cell: Cell, u: list[float], x: float | None, c: float, gates: list[float]) -> Step:
    f = sigmoid(u[1]) * (1 - cell.zoneout)
    c = f * tanh(u[0]) + (1 - f) * c
    if cell.blocks == 2:
        return c, c
    o = sigmoid(u[2])
    x = u[3] if cell.blocks == 4 else 0.0 if x is None else x * cell.scale
    return o * c + (1 - o) * x, c


def total(cell: Cell, u: list[float], x: float | None, c: float, gates: list[float]) -> Step:
    return c + u[0], c + u[0]


def maximum(cell: Cell, u: list[float], x: float | None, c: float, gates: list[float]) -> Step:
    c = u[0] if u[1] == 0 else max(c, u[0])
    return c, c


def shift(cell: Cell, u: list[float], x: float | None, c: float, gates: list[float]) -> Step:
    return c, u[0]


def decay(cell: Cell, u: list[float], x: float | None, c: float, gates: list[float]) -> Step:
    return u[1] * c + u[0], u[1] * c + u[0]


STEPS = {
    Kind.SRU: sru,
    Kind.LRN: lrn,
    Kind.QRNN: qrnn,
    Kind.SUM: total,
    Kind.MAX: maximum,
    Kind.SHIFT: shift,
    Kind.DECAY: decay,
}
BLOCKS = {Kind.SRU: [3, 4], Kind.LRN: [3, 4], Kind.QRNN: [2, 3, 4], Kind.MAX: [2], Kind.DECAY: [2]}
SWITCHES: dict[Kind, dict[str, Any]] = {
    Kind.SRU: {
        "activation": st.sampled_from(Activation),
        "updated_reset": st.booleans(),
        "scale": st.floats(0.5, 2),
    },
    Kind.LRN: {"activation": st.sampled_from(Activation)},
    Kind.QRNN: {"scale": st.floats(0.5, 2), "zoneout": st.floats(0, 1)},
}
CELLS = st.sampled_from(Kind).flatmap(
    lambda kind: st.builds(
        Cell,
        kind=st.just(kind),
        blocks=st.sampled_from(BLOCKS.get(kind, [1])),
        **SWITCHES.get(kind, {}),
    )
)


@given(
    cell=CELLS,
    skip=st.booleans(),
    backward=st.booleans(),
    steps=st.integers(0, 7),
    seed=st.integers(0, 1000),
)
def test_the_definition_is_the_equations_step_by_step(
    cell: Cell, skip: bool, backward: bool, steps: int, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    u = torch.randn(steps, cell.blocks, generator=g) * 2
    if cell.kind is Kind.MAX:
        u[:, 1] = (u[:, 1] > 0).float()
    x = torch.randn(steps, 1, generator=g) if skip and cell.takes_residual else None
    gates = torch.randn(2, 2, 1, generator=g) if cell.gated_by_state else (None, None)
    states = torch.randn(1, 3, generator=g)
    before = states.clone()
    c, expected = float(states[0, 1]), torch.zeros(steps, 1)
    numbers = gates.flatten().tolist() if isinstance(gates, torch.Tensor) else []
    for t in reversed(range(steps)) if backward else range(steps):
        residual = None if x is None else float(x[t])
        expected[t], c = STEPS[cell.kind](cell, u[t].tolist(), residual, c, numbers)
    split = 0 if backward else None
    weight_c, bias = gates
    h = reference_scan(u, x, weight_c, bias, single(states, steps), 1, cell, backward_from=split)
    torch.testing.assert_close(h, expected, rtol=1e-5, atol=1e-5)
    before[0, 1] = c
    torch.testing.assert_close(states, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blocks": 2}, "SRU cells have 3 or 4 blocks, not 2"),
        ({"kind": Kind.QRNN, "blocks": 5}, "QRNN cells have 2 or 3 or 4 blocks"),
        ({"kind": Kind.SUM}, "SUM cells have 1 blocks, not 3"),
    ],
)
def test_a_cell_refuses_blocks_that_its_kind_does_not_have(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Cell(**options)


@pytest.mark.parametrize(
    ("kind", "switch"),
    [
        (Kind.LRN, {"zoneout": 0.5}),
        (Kind.LRN, {"scale": 2.0}),
        (Kind.QRNN, {"activation": Activation.TANH}),
        (Kind.QRNN, {"updated_reset": True}),
    ],
    ids=str,
)
def test_a_cell_refuses_a_switch_that_its_kind_lacks(kind: Kind, switch: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{kind.name} cells have no {next(iter(switch))}"):
        Cell(kind=kind, **switch)
