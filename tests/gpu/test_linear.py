"""The product on a GPU: close to the exact one, and other rows change no bits of a row."""

import pytest
import torch
from torch import Tensor

from sruserve.kernels.triton import tiles
from sruserve.kernels.triton.linear import capability, linear_kernel, triton_linear
from sruserve.kernels.triton.tiles import LinearTile
from tests.gpu.exact import assert_same
from tests.interpreter import INTERPRETED

DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16, torch.float16]
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES, ids=str)
SHAPES = {
    "no tails": (128, 64, 64),
    "tails": (9, 200, 22),
    "inputs that 16 bytes do not divide": (65, 43, 33),
    "one number": (1, 1, 1),
}
if not INTERPRETED:
    SHAPES |= {
        "longer tails": (70, 200, 94),
        "projection": (3000, 2048, 512),
        "gates": (2049, 512, 6144),
        "odd": (777, 1151, 999),
    }
TABLE, PICKS = ((7, 60, 10), 9) if INTERPRETED else ((70, 200, 94), 91)
EACH_SHAPE = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def operands(
    shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    rows, inputs, outputs = shape
    g = torch.Generator().manual_seed(rows)
    made = [torch.randn(rows, inputs, generator=g), torch.randn(outputs, inputs, generator=g)]
    x, weight, bias = (t.to(device, dtype) for t in (*made, torch.randn(outputs, generator=g)))
    return x, weight, bias


def matching_tiles(outputs: int, dtype: torch.dtype, device: torch.device) -> set[LinearTile]:
    """Every tile that promises the same bits."""
    place = capability(device)
    large_batch = tiles.decode_tile(4096, dtype, place, fast=True)
    return {
        tiles.linear_tile(outputs, dtype, place),
        tiles.linear_tile(4096, dtype, place),
        tiles.decode_tile(1, dtype, place),
        large_batch,
    }


def vector_tiles(dtype: torch.dtype, device: torch.device) -> set[LinearTile]:
    counts = (4,) if INTERPRETED else (1, 2, 4, 8)
    return {tiles.decode_tile(n, dtype, capability(device), fast=True) for n in counts}


@EACH_DTYPE
@EACH_SHAPE
def test_it_is_the_exact_product_but_for_rounding(
    shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    x, weight, bias = operands(shape, dtype, device)
    exact = x.double() @ weight.double().T + bias.double()
    # What float32 sums may lose; the last rounding is to the dtype of the output.
    error = 1e-6 * (x.double().abs() @ weight.double().abs().T + 1)
    forms = matching_tiles(shape[2], dtype, device)
    if shape[0] < 10 or not INTERPRETED:
        forms |= vector_tiles(dtype, device)
    for tile in forms:
        y = triton_linear(x, weight, bias, tile=tile)
        assert y.dtype is dtype
        step = 0.0 if dtype is torch.float32 else torch.finfo(dtype).eps
        assert ((y.double() - exact).abs() <= error + step * exact.abs()).all()
        wide = triton_linear(x, weight, bias, dtype=torch.float32, tile=tile)
        assert ((wide.double() - exact).abs() <= error).all()


@EACH_DTYPE
@EACH_SHAPE
def test_every_tile_but_the_vector_ones_gives_the_same_bits(
    shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    x, weight, bias = operands(shape, dtype, device)
    expected = triton_linear(x, weight, bias)
    for tile in matching_tiles(shape[2], dtype, device):
        assert_same(triton_linear(x, weight, bias, tile=tile), expected)


@EACH_DTYPE
@EACH_SHAPE
def test_the_bits_of_a_row_do_not_depend_on_the_number_of_rows(
    shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    x, weight, _ = operands(shape, dtype, device)
    whole = triton_linear(x, weight)
    for first, end in ((0, 1), (0, 7), (shape[0] // 2, shape[0]), (shape[0] - 1, shape[0])):
        assert_same(triton_linear(x[first:end].clone(), weight), whole[first:end])


@EACH_DTYPE
def test_the_bits_of_a_row_do_not_depend_on_its_company(
    dtype: torch.dtype, device: torch.device
) -> None:
    x, weight, bias = operands(TABLE, dtype, device)
    whole = triton_linear(x, weight, bias)
    company = torch.full_like(x, torch.nan)
    company[5] = x[5]
    for tile in (None, *vector_tiles(dtype, device)):
        expected = whole if tile is None else triton_linear(x, weight, bias, tile=tile)
        assert_same(triton_linear(company, weight, bias, tile=tile)[5], expected[5])


@EACH_DTYPE
def test_an_index_takes_rows_of_a_table(dtype: torch.dtype, device: torch.device) -> None:
    x, weight, bias = operands(TABLE, dtype, device)
    index = torch.randint(0, TABLE[0], (PICKS,), device=device)
    out = torch.full((PICKS + 2, TABLE[2]), torch.nan, dtype=dtype, device=device)
    for tile in (None, *vector_tiles(dtype, device)):
        out.fill_(torch.nan)
        triton_linear(x, weight, bias, index=index, out=out[1:-1], tile=tile)
        assert_same(out[1:-1], triton_linear(x[index], weight, bias, tile=tile))
        assert out[0].isnan().all()
        assert out[-1].isnan().all()


@pytest.mark.skipif(INTERPRETED, reason="the interpreter compiles nothing")
def test_another_number_of_rows_compiles_nothing(device: torch.device) -> None:
    x, weight, _ = operands((300, 64, 64), torch.bfloat16, device)
    triton_linear(x, weight)
    kernels = linear_kernel.device_caches[torch.cuda.current_device()][0]
    before = len(kernels)
    for rows in (1, 16, 17, 299):
        triton_linear(x[:rows], weight)
    assert len(kernels) == before


@pytest.mark.skipif(INTERPRETED, reason="graphs are of the GPU")
@EACH_DTYPE
def test_a_captured_product_replays(dtype: torch.dtype, device: torch.device) -> None:
    x, weight, bias = operands(TABLE, dtype, device)
    for tile in (None, *vector_tiles(dtype, device)):
        expected = triton_linear(x, weight, bias, tile=tile)
        out, graph = torch.empty_like(expected), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            triton_linear(x, weight, bias, out=out, tile=tile)
        out.fill_(torch.nan)
        graph.replay()
        assert torch.equal(out, expected)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter sums by the size of a tile")
@pytest.mark.parametrize(
    "shape", [(4096, 512, 1536), (2049, 1024, 3072), (3001, 64, 1024)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_products_through_descriptors_have_the_bits_of_the_others(
    shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device
) -> None:
    x, weight, _ = operands(shape, dtype, device)
    expected = triton_linear(x, weight, tile=tiles.linear_tile(shape[2], dtype, capability(device)))
    assert torch.equal(triton_linear(x, weight), expected)
