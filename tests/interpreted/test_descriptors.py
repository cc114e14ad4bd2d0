"""Products through tensor descriptors: those of `triton_linear`, and where they are chosen."""

import pytest
import torch

from sruserve.kernels.triton import descriptors, linear, tiles
from sruserve.kernels.triton.descriptors import takes_descriptors
from sruserve.kernels.triton.tiles import LinearTile

HOPPER = (9, 0)


SMALL = LinearTile(16, 32, 16, 3, 4)


@pytest.mark.parametrize("programs", [1, 3, 100])
@pytest.mark.parametrize("shape", [(37, 32, 64), (16, 16, 32), (50, 48, 96)], ids=str)
def test_programs_share_the_blocks_of_a_product(
    shape: tuple[int, int, int], programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(descriptors, "multiprocessors", lambda _: programs)
    rows, inputs, outputs = shape
    g = torch.Generator().manual_seed(rows)
    # Whole numbers, whose sums have no rounding: NumPy sums by the size of a tile.
    x = torch.randint(-3, 4, (rows, inputs), generator=g).float()
    weight = torch.randint(-3, 4, (outputs, inputs), generator=g).float()
    out = torch.full((rows + 2, outputs), torch.nan)
    descriptors.descriptor_linear(x, weight, out[1:-1], SMALL)
    assert torch.equal(out[1:-1], x @ weight.T)
    assert out[0].isnan().all(), "it writes before its rows"
    assert out[-1].isnan().all(), "it writes past its rows"


def test_they_are_chosen_for_many_rows_and_whole_tiles_on_hopper_alone() -> None:
    def chosen(rows: int = 2048, inputs: int = 16, outputs: int = 1024, **how: object) -> bool:
        dtype, place = how.get("dtype", torch.float16), how.get("place", HOPPER)
        begin = how.get("begin", 0)  # of x in its memory, in elements
        x = torch.empty(rows * inputs + 8, dtype=dtype)[begin:]  # type: ignore[call-overload]
        x = x[: rows * inputs].view(rows, inputs)
        weight, out = torch.empty(outputs, inputs), torch.empty(1)
        return takes_descriptors(x, weight, out, place, SMALL)  # type: ignore[arg-type]

    assert chosen()
    assert chosen(dtype=torch.bfloat16)
    assert chosen(begin=8)
    assert not chosen(begin=4), "a descriptor's address is a multiple of 16 bytes"
    assert not chosen(rows=2047)
    assert not chosen(outputs=992)
    assert not chosen(outputs=1040)
    assert not chosen(inputs=24)
    assert not chosen(dtype=torch.float32)
    assert not chosen(place=(8, 0))
    assert not chosen(place=(10, 0))
    tiles.share_columns(32)
    try:
        assert not chosen()
    finally:
        tiles.share_columns(tiles.SHARED_COLUMNS)


def test_a_product_with_a_bias_an_index_or_another_dtype_does_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[int] = []

    def counted(x: torch.Tensor, _weight: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        taken.append(len(x))
        return out

    monkeypatch.setattr(descriptors, "takes_descriptors", lambda *_: True)
    monkeypatch.setattr(descriptors, "descriptor_linear", counted)
    x, weight = torch.ones(3, 16), torch.ones(32, 16)
    linear.triton_linear(x, weight)
    assert taken == [3]
    linear.triton_linear(x, weight, torch.ones(32))
    linear.triton_linear(x, weight, index=torch.arange(2))
    linear.triton_linear(x, weight, dtype=torch.float16)
    linear.triton_linear(x, weight, tile=tiles.LINEAR_FLOAT32)
    assert taken == [3]
