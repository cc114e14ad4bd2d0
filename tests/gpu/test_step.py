"""One step on a GPU: the bits of the product and the scan, for any other streams in the batch."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sruserve.kernels.cell import Cell
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.triton import tiles
from sruserve.kernels.triton.linear import capability, triton_linear
from sruserve.kernels.triton.scan import triton_scan
from sruserve.kernels.triton.step import step_kernel, triton_step
from sruserve.kernels.triton.tiles import LinearTile
from tests.gpu.exact import assert_same
from tests.interpreter import INTERPRETED
from tests.kernels.scans import VARIANTS, Case, case

DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16, torch.float16]
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
STREAMS = 7 if INTERPRETED else 300
SIZES = {"tails": (40, 41), "inputs that 16 bytes do not divide": (51, 32)}
if not INTERPRETED:
    SIZES |= {"a layer": (512, 2048), "a narrow layer": (128, 128)}
EACH_SIZE = pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
STEPS = {name: options for name, options in VARIANTS.items() if "backward_from" not in options}
EACH_VARIANT = pytest.mark.parametrize("variant", STEPS.values(), ids=STEPS)


class Step:
    """One step of `streams` streams: the arguments of the layer, and x and weight before it."""

    def __init__(
        self,
        size: tuple[int, int],
        streams: int,
        dtype: torch.dtype,
        device: torch.device,
        **variant: Any,
    ) -> None:
        inputs, width = size
        self.case: Case = case(width, [1] * streams, dtype=dtype, device=device, **variant)
        g = torch.Generator().manual_seed(1)
        self.x = torch.randn(streams, inputs, generator=g).to(device, dtype)
        weight = torch.randn(self.case.u.shape[1], inputs, generator=g) / inputs**0.5
        self.weight = weight.to(device, dtype)
        # Only SRU's products have none.
        self.weight_bias = None
        if not self.case.cell.gated_by_state:
            self.weight_bias = torch.randn(len(weight), generator=g).to(device, dtype)

    def run(
        self, tile: LinearTile | None = None, streams: slice = slice(None), **options: Any
    ) -> tuple[Tensor, Tensor]:
        """Returns h and the states after the step."""
        batch, residual = self.case.batch, self.case.residual
        states = batch.states.clone()
        h = triton_step(
            self.x[streams].clone(),
            self.weight,
            self.weight_bias,
            None if residual is None else residual[streams].clone(),
            self.case.weight_c,
            self.case.bias,
            states,
            batch.source[streams].clone(),
            batch.target[streams].clone(),
            self.case.column,
            self.case.cell,
            tile=tile,
            **options,
        )
        return h, states

    def as_prefill(self) -> tuple[Tensor, Tensor]:
        """The same step by the prefill kernels."""
        batch, states = self.case.batch, self.case.batch.states.clone()
        batch = RaggedBatch(batch.offsets, states, batch.source, batch.target)
        u = triton_linear(self.x, self.weight, self.weight_bias)
        return triton_scan(*replace(self.case, u=u, batch=batch).arguments()), states


def large_batch_tile(dtype: torch.dtype, device: torch.device) -> LinearTile:
    return tiles.step_tile(4096, dtype, capability(device), fast=True)


def vector_tiles(dtype: torch.dtype, device: torch.device) -> set[LinearTile]:
    counts = (4,) if INTERPRETED else (1, 2, 4, 8)
    return {tiles.step_tile(n, dtype, capability(device), fast=True) for n in counts}


@EACH_DTYPE
@EACH_VARIANT
@EACH_SIZE
def test_a_step_has_the_bits_of_the_product_and_the_scan(
    size: tuple[int, int], variant: dict[str, Any], dtype: torch.dtype, device: torch.device
) -> None:
    step = Step(size, STREAMS, dtype, device, **variant)
    expected = step.as_prefill()
    for tile in (None, large_batch_tile(dtype, device)):
        for ours, theirs in zip(step.run(tile), expected, strict=True):
            assert_same(ours, theirs)


@EACH_DTYPE
@EACH_VARIANT
@EACH_SIZE
def test_the_fast_tiles_agree_to_rounding(
    size: tuple[int, int], variant: dict[str, Any], dtype: torch.dtype, device: torch.device
) -> None:
    streams = min(STREAMS, 15)
    step = Step(size, streams, dtype, device, **variant)
    h, states = step.run()
    # Products near the border between two numbers of the dtype may round to either.
    step_of = 2e-5 if dtype is torch.float32 else 4 * torch.finfo(dtype).eps
    for tile in vector_tiles(dtype, device):
        fast, fast_states = step.run(tile)
        torch.testing.assert_close(fast, h, rtol=step_of, atol=step_of)
        torch.testing.assert_close(fast_states, states, rtol=step_of, atol=step_of)


@EACH_DTYPE
def test_a_stream_has_the_same_bits_alone_and_in_company(
    dtype: torch.dtype, device: torch.device
) -> None:
    step = Step((40, 41), STREAMS, dtype, device)
    h, states = step.run()
    target = step.case.batch.target
    for row in (0, 1, STREAMS - 1):
        alone, states_alone = step.run(streams=slice(row, row + 1))
        assert_same(alone[0], h[row])
        assert_same(states_alone[target[row]], states[target[row]])


@EACH_DTYPE
def test_a_step_leaves_other_memory_alone(dtype: torch.dtype, device: torch.device) -> None:
    step = Step((40, 41), STREAMS, dtype, device)
    batch, column = step.case.batch, step.case.column
    for tile in (None, large_batch_tile(dtype, device), *vector_tiles(dtype, device)):
        out = torch.full((STREAMS + 2, 41), torch.nan, dtype=dtype, device=device)
        _, states = step.run(tile, out=out[1:-1])
        assert out[1:-1].isfinite().all()
        assert out[0].isnan().all()
        assert out[-1].isnan().all()
        written = torch.zeros_like(states, dtype=torch.bool)
        written[batch.target[batch.target >= 0], column : column + 41] = True
        assert torch.equal(states[~written], batch.states[~written])
        assert (states[written] != batch.states[written]).all()


@EACH_DTYPE
def test_indices_gather_from_a_table(dtype: torch.dtype, device: torch.device) -> None:
    step = Step((40, 41), STREAMS, dtype, device)
    index = torch.arange(STREAMS, device=device).flip(0)
    expected = step.run()
    residual = step.case.residual
    assert residual is not None
    step.x, residual[:] = step.x.flip(0), residual.flip(0)
    for ours, theirs in zip(step.run(x_index=index, residual_index=index), expected, strict=True):
        assert_same(ours, theirs)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
def test_another_layer_or_number_of_streams_compiles_nothing(device: torch.device) -> None:
    step = Step((64, 64), 40, torch.bfloat16, device)
    step.run()
    kernels = step_kernel.device_caches[torch.cuda.current_device()][0]
    before = len(kernels)
    for streams in (1, 16, 17):
        for column in (0, 1, 8):
            step.case = case(64, [1] * 40, dtype=torch.bfloat16, device=device, scale=column + 0.5)
            object.__setattr__(step.case, "column", column)
            step.run(streams=slice(0, streams))
    assert len(kernels) == before


@pytest.mark.skipif(INTERPRETED, reason="graphs are of the GPU")
@EACH_DTYPE
def test_a_captured_step_moves_the_states_at_every_replay(
    dtype: torch.dtype, device: torch.device
) -> None:
    width, streams = 64, 9
    g = torch.Generator().manual_seed(2)
    x, residual = (torch.randn(streams, width, generator=g).to(device, dtype) for _ in range(2))
    weight = (torch.randn(3 * width, width, generator=g) * 0.1).to(device, dtype)
    weight_c, bias = torch.randn(2, 2, width, generator=g).to(device)
    rows = torch.arange(streams, device=device)

    def step(states: Tensor, out: Tensor) -> None:
        gates = (weight_c, bias)
        triton_step(x, weight, None, residual, *gates, states, rows, rows, 0, Cell(), out=out)

    states, out = torch.zeros(streams, width, device=device), torch.empty_like(x)
    step(states, out)
    step(states, out)
    replayed, again = torch.zeros_like(states), torch.empty_like(out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(replayed, again)
    for _ in range(2):
        graph.replay()
    assert torch.equal(replayed, states)
    assert torch.equal(again, out)
