import pytest
import torch
from torch import Tensor

from sruserve.kernels.triton import tiles
from sruserve.kernels.triton.linear import triton_linear
from sruserve.kernels.triton.tiles import LinearTile

DOTS = LinearTile(rows=16, columns=16, depth=32, stages=2, warps=4)
VECTOR = LinearTile(rows=4, columns=4, depth=64, stages=1, warps=4, vector=True)
FORMS = pytest.mark.parametrize("tile", [DOTS, VECTOR], ids=["dots", "vector"])


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def inside(shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """A tensor of NaN, and the larger tensor around it."""
    rows, columns = shape
    around = torch.full((rows + 2, columns), torch.nan)
    return around[1:-1], around


@FORMS
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [(1, 1, 1), (5, 32, 16), (17, 50, 45), (18, 200, 30)],
    ids=["a single number", "no tails", "tails", "longer tails"],
)
def test_a_product_is_what_torch_computes_and_fills_its_output_only(
    tile: LinearTile, rows: int, inputs: int, outputs: int
) -> None:
    x, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    out, around = inside((rows, outputs))
    assert triton_linear(x, weight, bias, out=out, tile=tile) is out
    torch.testing.assert_close(out, x @ weight.T + bias, atol=1e-5, rtol=1e-6)
    assert around[0].isnan().all()
    assert around[-1].isnan().all()


@FORMS
def test_an_index_picks_the_rows_that_are_multiplied(tile: LinearTile) -> None:
    x, weight, index = torch.randn(6, 40), torch.randn(20, 40), torch.tensor([5, 0, 5, 3, 1, 1, 2])
    y = triton_linear(x, weight, index=index, tile=tile)
    assert torch.equal(y, triton_linear(x[index], weight, tile=tile))
    torch.testing.assert_close(y, x[index] @ weight.T, atol=1e-5, rtol=1e-6)


def test_many_blocks_of_rows_are_each_computed_once() -> None:
    x, weight = torch.randn(16 * 19 + 3, 16), torch.randn(40, 16)
    y = triton_linear(x, weight, tile=DOTS)
    torch.testing.assert_close(y, x @ weight.T, atol=1e-5, rtol=1e-6)


@FORMS
def test_a_row_has_the_same_bits_alone_and_in_company(tile: LinearTile) -> None:
    # Whole numbers: here NumPy multiplies, in an order of its own.
    x, weight = torch.randn(19, 50).mul(9).round(), torch.randn(20, 50).mul(9).round()
    together = triton_linear(x, weight, tile=tile)
    for row in (0, 7, 18):
        assert torch.equal(triton_linear(x[row : row + 1], weight, tile=tile)[0], together[row])


@FORMS
def test_half_precision_is_summed_in_float32_and_rounded_once(tile: LinearTile) -> None:
    x, weight, bias = torch.randn(5, 64).half(), torch.randn(9, 64).half(), torch.randn(9).half()
    exact = x.double() @ weight.double().T + bias.double()
    y = triton_linear(x, weight, bias, tile=tile)
    assert y.dtype is torch.float16
    torch.testing.assert_close(y.double(), exact, atol=1e-5, rtol=2**-11)
    wide = triton_linear(x, weight, bias, dtype=torch.float32, tile=tile)
    torch.testing.assert_close(wide.double(), exact, atol=1e-5, rtol=1e-6)


def test_no_rows_are_no_work() -> None:
    assert triton_linear(torch.randn(0, 8), torch.randn(4, 8)).shape == (0, 4)


X, WEIGHT = torch.zeros(3, 8), torch.zeros(5, 8)


@pytest.mark.parametrize(
    ("x", "weight", "named", "message"),
    [
        (X, WEIGHT[:, :7], {}, r"x and weight must be \(rows, in\) and \(out, in\)"),
        (X[0], WEIGHT, {}, "x and weight must be"),
        (X, WEIGHT.half(), {}, "must share float32, bfloat16 or float16"),
        (X.double(), WEIGHT.double(), {}, "must share float32, bfloat16 or float16"),
        (X.T.contiguous().T, WEIGHT, {}, "x must be contiguous"),
        (X, WEIGHT.T.contiguous().T, {}, "weight must be contiguous"),
        (X, WEIGHT, {"bias": torch.zeros(4)}, r"bias must have shape \(5,\)"),
        (X, WEIGHT, {"index": torch.zeros(4, dtype=torch.int32)}, "index must .* int64"),
        (X, WEIGHT, {"out": torch.zeros(3, 4)}, r"out must have shape \(3, 5\)"),
        (X, WEIGHT, {"out": torch.zeros(3, 5), "dtype": torch.half}, "out must have .*float16"),
        (X, WEIGHT, {"out": torch.zeros(5, 3).T}, "out must be contiguous"),
        (X, WEIGHT, {"bias": torch.zeros(5, device="meta")}, "bias must be on cpu"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(
    x: Tensor, weight: Tensor, named: dict[str, Tensor], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        triton_linear(x, weight, **named)  # type: ignore[arg-type]


def test_every_tile_of_16_bit_types_runs_on_one_instruction() -> None:
    """The requirements of `wgmma`; a tile that violates them would round differently."""
    for capability in ((8, 0), (8, 9), (9, 0), (12, 0)):
        for rows in (1, 15, 16, 255, 256, 4096):
            for fast in (False, True):
                for tile in (
                    tiles.linear_tile(rows, torch.bfloat16, capability),
                    tiles.step_tile(rows, torch.bfloat16, capability, fast),
                    tiles.decode_tile(rows, torch.float16, capability, fast),
                ):
                    if tile.vector:
                        assert fast
                        continue
                    loaded = tiles.loadable(tile, 203, torch.bfloat16)
                    assert min(tile.rows, loaded.rows) >= 64
                    assert {tile.warps, loaded.warps} <= {4, 8}


def test_only_fast_tiles_may_change_the_bits_by_the_number_of_rows() -> None:
    """All others have sums that start from zero and rise with the inputs, whatever their size."""
    for place in ((8, 0), (9, 0), (10, 0)):
        for dtype in (torch.float32, torch.bfloat16):
            for choose in (tiles.step_tile, tiles.decode_tile):
                counts = (1, 2, 3, 15, 16, 255, 256, 512, 1024, 4096)
                assert not any(choose(rows, dtype, place).vector for rows in counts)
                fast = {rows for rows in counts if choose(rows, dtype, place, fast=True).vector}
                assert fast == ({1, 2, 3, 15} if dtype is torch.float32 else {1, 2})
    assert tiles.step_tile(3, torch.float32, (9, 0), fast=True).rows == 4
    assert tiles.step_tile(15, torch.float32, (9, 0), fast=True).rows == 8


def test_a_step_of_many_streams_has_larger_tiles_on_hopper() -> None:
    """Only there do all tiles have the same bits, as measured."""
    steps = [tiles.step_tile(rows, torch.bfloat16, (9, 0)) for rows in (0, 255, 256, 512, 4096)]
    small, middle, large = tiles.STEP_HOPPER, tiles.STEP_MIDDLE_BATCH, tiles.STEP_LARGE_BATCH
    assert steps == [small, small, middle, large, large]
    products = [tiles.decode_tile(rows, torch.float16, (9, 0)) for rows in (1, 256, 1023, 1024)]
    middle, large = tiles.LINEAR_MIDDLE_BATCH, tiles.LINEAR_LARGE_BATCH
    assert products == [tiles.LINEAR_DECODE, middle, middle, large]
    for place in ((8, 0), (10, 0)):
        assert len({tiles.step_tile(rows, torch.bfloat16, place) for rows in (1, 4096)}) == 1
