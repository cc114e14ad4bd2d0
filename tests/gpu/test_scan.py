"""The scan on a GPU: it agrees with the definition, and its bits depend on nothing else."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.triton.scan import triton_scan
from tests.interpreter import INTERPRETED
from tests.kernels.scans import (
    TANH,
    VARIANTS,
    assert_exact_gates,
    assert_same_bits,
    assert_same_pattern,
    case,
    spoil,
)

DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16, torch.float16]
WIDTHS = [41] if INTERPRETED else [1, 41, 64, 70, 250, 1000, 1024]
LENGTHS = [3, 9, 1, 0, 17] if INTERPRETED else [3, 9, 1, 0, 17, 64, 2, 100, 8]
EACH_VARIANT = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def assert_close(ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> None:
    """States to float32's rounding, outputs to that of their dtype."""
    (h, states), (expected, expected_states) = ours, theirs
    assert h.dtype is expected.dtype
    step = max(torch.finfo(h.dtype).eps, 1e-5)
    torch.testing.assert_close(h, expected, rtol=step, atol=1e-5)
    torch.testing.assert_close(states, expected_states, rtol=1e-5, atol=1e-5)


@EACH_DTYPE
@EACH_VARIANT
@pytest.mark.parametrize("width", WIDTHS)
def test_it_agrees_with_the_definition(
    width: int, variant: dict[str, Any], dtype: torch.dtype, device: torch.device
) -> None:
    work = case(width, LENGTHS, dtype=dtype, device=device, **variant)
    assert_close(work.run(triton_scan), work.expected())


@EACH_DTYPE
@EACH_VARIANT
@pytest.mark.parametrize("place", ["u", "state", "weight", "bias", "residual"])
def test_nan_and_infinity_spread_as_in_the_definition(
    place: str, variant: dict[str, Any], dtype: torch.dtype, device: torch.device
) -> None:
    work = case(67, [6, 3, 0, 9], dtype=dtype, **variant)
    tensors = {
        "u": work.u,
        "state": work.batch.states,
        "weight": work.weight_c,
        "bias": work.bias,
        "residual": work.residual,
    }
    tensor = tensors[place]
    spoil(work.u if tensor is None else tensor)
    work = work.to(device)
    assert_same_pattern(work.run(triton_scan), work.expected())


def test_the_gates_are_exact_to_rounding(device: torch.device) -> None:
    assert_exact_gates(triton_scan, 101 if INTERPRETED else 50_001, device)


@EACH_DTYPE
@EACH_VARIANT
@pytest.mark.parametrize("cuts", [[1], [8, 16], [1, 2, 3, 4, 5], [7, 25, 39]], ids=str)
def test_any_split_of_time_gives_the_same_bits(
    cuts: list[int], variant: dict[str, Any], dtype: torch.dtype, device: torch.device
) -> None:
    if "backward_from" in variant:
        variant = variant | {"backward_from": None}  # it has to see the end first
    length = 41
    work = case(72, [length], dtype=dtype, device=device, **variant)
    states, row = work.batch.states.clone(), work.batch.source
    parts = []
    for first, end in pairwise([0, *cuts, length]):
        offsets = torch.tensor([0, end - first], device=device)
        part = work.rows(first, end, RaggedBatch(offsets, states, row, row))
        parts.append(triton_scan(*part.arguments(), **part.options))
    assert_same_bits((torch.cat(parts), states), work.run(triton_scan))


@EACH_DTYPE
@EACH_VARIANT
@pytest.mark.parametrize("sequences", [5] if INTERPRETED else [5, 600])
def test_a_sequence_has_the_same_bits_in_any_company(
    sequences: int, variant: dict[str, Any], dtype: torch.dtype, device: torch.device
) -> None:
    lengths = [i * 7 % 30 for i in range(sequences)]
    work = case(80, lengths, dtype=dtype, device=device, **variant)
    h, states = work.run(triton_scan)
    offsets = work.batch.offsets.tolist()
    for i in {0, 1, 2, 3, sequences // 2, sequences - 1}:
        alone, after = work.alone(i).run(triton_scan)
        assert torch.equal(alone, h[offsets[i] : offsets[i + 1]])
        if (target := int(work.batch.target[i])) >= 0:
            assert torch.equal(after[target], states[target])


@EACH_DTYPE
def test_a_channel_has_the_same_bits_in_any_width(dtype: torch.dtype, device: torch.device) -> None:
    work = case(136, [5, 0, 12, 3], dtype=dtype, device=device, backward_from=0.5)
    h, _ = work.run(triton_scan)
    for first, end in [(0, 1), (3, 68), (5, 100), (69, 133)]:
        assert torch.equal(work.channels(first, end).run(triton_scan)[0], h[:, first:end])


@EACH_DTYPE
def test_a_repeat_gives_the_same_bits(dtype: torch.dtype, device: torch.device) -> None:
    lengths = [9, 0, 4] if INTERPRETED else [i * 13 % 90 for i in range(200)]
    work = case(72 if INTERPRETED else 512, lengths, dtype=dtype, device=device, backward_from=0.5)
    first = work.run(triton_scan)
    for _ in range(2 if INTERPRETED else 20):
        assert_same_bits(work.run(triton_scan), first)


@pytest.mark.skipif(INTERPRETED, reason="large")
@EACH_DTYPE
def test_a_large_ragged_batch_agrees_with_the_definition(
    dtype: torch.dtype, device: torch.device
) -> None:
    lengths = [i * 31 % 60 for i in range(300)]
    work = case(512, lengths, dtype=dtype, device=device, activation=TANH, backward_from=0.5)
    assert_close(work.run(triton_scan), work.expected())


@pytest.mark.skipif(INTERPRETED, reason="large")
def test_more_sequences_than_a_short_grid_axis_holds(device: torch.device) -> None:
    count, width, length = 70_001, 40, 3
    one = case(width, [length], dtype=torch.bfloat16, device=device)
    assert one.residual is not None
    rows = torch.arange(count, device=device)
    batch = RaggedBatch(
        torch.arange(count + 1, device=device) * length,
        one.batch.states[:1].repeat(count, 1),
        rows,
        rows,
    )
    repeated = replace(one, u=one.u.repeat(count, 1), residual=one.residual.repeat(count, 1))
    h, states = replace(repeated, batch=batch).run(triton_scan)
    expected, end = one.run(triton_scan)
    assert torch.equal(h, expected.repeat(count, 1))
    assert torch.equal(states, end[:1].repeat(count, 1))


@pytest.mark.skipif(INTERPRETED, reason="large")
def test_rows_past_the_reach_of_32_bits(device: torch.device) -> None:
    width = 1024
    far = 2**31 // (3 * width) + 1
    if torch.cuda.mem_get_info()[0] < 20 * far * width:
        pytest.skip("needs 14 GB of GPU memory")
    work = case(width, [40], dtype=torch.bfloat16, device=device)
    assert work.residual is not None
    offsets = torch.tensor([0, far, far + 40], device=device)
    rows = torch.tensor([-1, 0], device=device)
    batch = RaggedBatch(offsets, work.batch.states, rows, rows)
    long = replace(
        work,
        u=torch.cat([work.u.new_zeros(far, 3 * width), work.u]),
        residual=torch.cat([work.residual.new_zeros(far, width), work.residual]),
        batch=batch,
    )
    (h, states), (expected, end) = long.run(triton_scan), work.run(triton_scan)
    assert torch.equal(h[far:], expected)
    assert torch.equal(states[0], end[0])
