"""The scan in Triton's interpreter: it agrees with the definition, and keeps to its own rows."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sruserve.kernels.cell import Kind
from sruserve.kernels.ragged import RaggedBatch, single
from sruserve.kernels.triton.scan import triton_scan
from sruserve.kernels.triton.tiles import SCAN_FLOAT32
from tests.kernels.scans import (
    KIND_VARIANTS,
    NAN,
    SRU_VARIANTS,
    Case,
    assert_exact_gates,
    assert_same_bits,
    assert_same_pattern,
    case,
    spoil,
)

EACH_VARIANT = pytest.mark.parametrize("variant", SRU_VARIANTS.values(), ids=SRU_VARIANTS)
EACH_KIND = pytest.mark.parametrize("variant", KIND_VARIANTS.values(), ids=KIND_VARIANTS)
BLOCK, STEPS = SCAN_FLOAT32.channels, SCAN_FLOAT32.steps
LENGTHS = [3, STEPS + 1, 1, 0, 2 * STEPS]


@EACH_VARIANT
@pytest.mark.parametrize("width", [5, BLOCK + 9])
def test_it_agrees_with_the_definition(variant: dict[str, Any], width: int) -> None:
    work = case(width, LENGTHS, **variant)
    torch.testing.assert_close(work.run(triton_scan), work.expected(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("variant", ["everything", "highway-block", "no-skip"])
def test_it_agrees_with_the_definition_where_tiles_are_full(variant: str) -> None:
    work = case(2 * BLOCK, LENGTHS, **SRU_VARIANTS[variant])
    torch.testing.assert_close(work.run(triton_scan), work.expected(), rtol=1e-5, atol=2e-6)


@EACH_KIND
def test_every_kind_agrees_with_the_definition(variant: dict[str, Any]) -> None:
    work = case(BLOCK + 9, LENGTHS, **variant)
    torch.testing.assert_close(work.run(triton_scan), work.expected(), rtol=1e-5, atol=2e-6)


@EACH_KIND
def test_what_is_not_finite_spreads_as_in_the_definition(variant: dict[str, Any]) -> None:
    for place in ("u", "state"):
        work = case(9, [6, 3, 0, 9], **variant)
        spoil(work.u if place == "u" else work.batch.states)
        assert_same_pattern(work.run(triton_scan), work.expected())


@EACH_VARIANT
@pytest.mark.parametrize("place", ["u", "state", "weight", "bias", "residual"])
def test_nan_and_infinity_spread_as_in_the_definition(place: str, variant: dict[str, Any]) -> None:
    work = case(9, [6, 3, 0, 9], **variant)
    tensors = {
        "u": work.u,
        "state": work.batch.states,
        "weight": work.weight_c,
        "bias": work.bias,
        "residual": work.u if work.residual is None else work.residual,
    }
    tensor = tensors[place]
    assert tensor is not None
    spoil(tensor)
    assert_same_pattern(work.run(triton_scan), work.expected())


def test_the_gates_are_exact_to_rounding() -> None:
    assert_exact_gates(triton_scan, 101, "cpu")


def test_only_its_own_columns_of_the_target_rows_are_written() -> None:
    work = case(BLOCK + 3, [4, 2, 3, 0, 1])
    before, (_, states) = work.batch.states, work.run(triton_scan)
    mine = torch.zeros_like(before, dtype=torch.bool)
    mine[[0, 3, 7, 9], work.column : work.column + BLOCK + 3] = True  # the third is dropped
    assert torch.equal(states[~mine], before[~mine])
    assert (states[mine] != before[mine]).all()


def test_an_empty_sequence_carries_its_state_over() -> None:
    work = case(7, [0, 0, 0, 0], backward_from=0.5)
    place = slice(work.column, work.column + 7)
    before = work.batch.states.clone()
    before[3, place] = 0  # sequence 1 starts from zeros
    before[7, place] = before[6, place]
    assert torch.equal(work.run(triton_scan)[1], before)


def test_no_sequences_is_no_work() -> None:
    h, _ = case(7, []).run(triton_scan)
    assert h.shape == (0, 7)


def test_rows_past_the_last_offset_are_padding() -> None:
    work = case(7, [5, 6], backward_from=0.5)
    assert work.residual is not None
    padded = replace(
        work,
        u=torch.cat([work.u, work.u.new_full((3, 21), NAN)]),
        residual=torch.cat([work.residual, work.residual.new_full((3, 7), NAN)]),
    )
    (h, states), expected = padded.run(triton_scan), work.run(triton_scan)
    assert_same_bits((h[:11], states), expected)
    assert h[11:].isnan().all()


def test_out_receives_h() -> None:
    work = case(7, [5, 6])
    out = torch.zeros(11, 7)
    h, _ = replace(work, options={"out": out}).run(triton_scan)
    assert h is out
    assert torch.equal(out, work.run(triton_scan)[0])


@settings(max_examples=12)
@given(
    cuts=st.sets(st.integers(1, 2 * STEPS + 2), max_size=3),
    variant=st.sampled_from([v for v in SRU_VARIANTS.values() if "backward_from" not in v]),
)
def test_any_split_of_time_gives_the_same_bits(cuts: set[int], variant: dict[str, Any]) -> None:
    split_is_whole(cuts, variant)


@EACH_KIND
def test_a_split_of_every_kind_gives_the_same_bits(variant: dict[str, Any]) -> None:
    split_is_whole({2, STEPS + 1}, variant | {"backward_from": None})


def split_is_whole(cuts: set[int], variant: dict[str, Any]) -> None:
    length = 2 * STEPS + 3
    work = case(5, [length], **variant)
    states = work.batch.states.clone()
    parts = []
    for first, end in pairwise([0, *sorted(cuts), length]):
        part = work.rows(first, end, single(states, end - first))
        parts.append(triton_scan(*part.arguments(), **part.options))
    assert_same_bits((torch.cat(parts), states), work.run(triton_scan))


@pytest.mark.parametrize("variant", ["bidirectional", "everything", "olrn", "qrnn-residual"])
def test_a_sequence_has_the_same_bits_in_any_company(variant: str) -> None:
    work = case(BLOCK + 9, [3, STEPS + 1, 1, 0, 2], **(SRU_VARIANTS | KIND_VARIANTS)[variant])
    h, states = work.run(triton_scan)
    for i, (first, end) in enumerate(pairwise(work.batch.offsets.tolist())):
        alone, after = work.alone(i).run(triton_scan)
        assert torch.equal(alone, h[first:end])
        if (target := int(work.batch.target[i])) >= 0:
            assert torch.equal(after[target], states[target])


def bad(work: Case, **batch: torch.Tensor) -> Case:
    return replace(work, batch=replace(work.batch, **batch))


WORK = case(20, [4, 5])
LRN = case(20, [4, 5], kind=Kind.LRN)
assert WORK.weight_c is not None
WRONG: dict[str, tuple[Case, str]] = {
    "u-strided": (replace(WORK, u=WORK.u.T.contiguous().T), "u must"),
    "u-float64": (replace(WORK, u=WORK.u.double()), "u must be float32"),
    "u-two-blocks": (replace(WORK, u=WORK.u[:, :40].contiguous()), "u must"),
    "residual-dtype": (replace(WORK, residual=torch.zeros(9, 20).half()), "residual must"),
    "residual-short": (replace(WORK, residual=torch.zeros(8, 20)), "residual must"),
    "residual-of-lrn": (
        replace(LRN, residual=WORK.residual),
        "LRN cells with 3 blocks take no residual",
    ),
    "bias-of-lrn": (replace(LRN, bias=WORK.bias), "LRN cells take neither"),
    "no-weight": (replace(WORK, weight_c=None), "SRU cells need weight_c and bias"),
    "weight-bfloat16": (replace(WORK, weight_c=WORK.weight_c.bfloat16()), "weight_c must"),
    "bias-wide": (replace(WORK, bias=torch.zeros(2, 21)), "bias must"),
    "bias-strided": (replace(WORK, bias=torch.zeros(20, 2).T), "bias must"),
    "column-past-end": (replace(WORK, column=9), "columns 9 to 29 must lie within the 28"),
    "column-negative": (replace(WORK, column=-1), "columns -1 to 19"),
    "backward-past-end": (replace(WORK, options={"backward_from": 21}), "backward_from"),
    "backward-negative": (replace(WORK, options={"backward_from": -1}), "backward_from"),
    "out-short": (replace(WORK, options={"out": torch.zeros(8, 20)}), "out must"),
    "out-dtype": (replace(WORK, options={"out": torch.zeros(9, 20).half()}), "out must"),
    "offsets-int32": (bad(WORK, offsets=WORK.batch.offsets.int()), "offsets must"),
    "offsets-short": (bad(WORK, offsets=torch.tensor([0, 9])), "offsets must"),
    "source-int32": (bad(WORK, source=WORK.batch.source.int()), "source must"),
    "target-short": (bad(WORK, target=torch.tensor([0])), "target must"),
    "states-float64": (bad(WORK, states=WORK.batch.states.double()), "states must"),
    "states-strided": (bad(WORK, states=torch.zeros(28, 4).T), "states must"),
    "states-elsewhere": (bad(WORK, states=torch.zeros(4, 28, device="meta")), "on cpu"),
}


@pytest.mark.parametrize("name", WRONG)
def test_arguments_that_do_not_fit_are_named_before_anything_is_written(name: str) -> None:
    work, message = WRONG[name]
    states = work.batch.states
    before = states.clone()
    with pytest.raises(ValueError, match=message):
        triton_scan(*work.arguments(), **work.options)
    assert before.is_meta or torch.equal(states, before)


def test_a_batch_of_no_rows_at_all_carries_states() -> None:
    work = case(5, [0])
    batch = RaggedBatch(work.batch.offsets, work.batch.states, work.batch.source, torch.tensor([1]))
    _, states = replace(work, batch=batch).run(triton_scan)
    assert torch.equal(states[1, 5:10], work.batch.states[0, 5:10])
