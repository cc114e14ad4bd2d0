"""The variants that no device has judged compute what the kernels that ship do, bit for bit."""

from collections.abc import Iterator

import pytest
import torch

from sruserve.kernels import Cell, candidates
from sruserve.kernels.candidates import Candidate
from sruserve.kernels.triton import linear, step, support, tiles
from sruserve.kernels.triton.dependent import begins_early
from sruserve.kernels.triton.support import why_not

AMPERE, HOPPER, BLACKWELL = (8, 0), (9, 0), (10, 0)
WIDTH, INPUTS, ROWS = 20, 40, 5


@pytest.fixture(autouse=True)
def _none_chosen() -> Iterator[None]:
    yield
    candidates.choose(set())


def whole(*size: int) -> torch.Tensor:
    """Small whole numbers, whose sums have no rounding: NumPy sums by the size of a tile."""
    return torch.randint(-3, 4, size, generator=torch.Generator().manual_seed(len(size))).float()


def stepped(tile: tiles.LinearTile) -> tuple[torch.Tensor, torch.Tensor]:
    states, rows = whole(2 * ROWS, WIDTH), torch.arange(ROWS)
    arguments = (whole(2, WIDTH), whole(2, WIDTH), states, rows, rows + ROWS, 0, Cell())
    x, weight = whole(ROWS, INPUTS), whole(3 * WIDTH, INPUTS)
    h = step.triton_step(x, weight, None, whole(ROWS, WIDTH), *arguments, tile=tile)
    return h, states


def test_narrow_tiles_have_the_bits_of_those_that_ship() -> None:
    narrow, shipped = stepped(tiles.STEP_NARROW), stepped(tiles.STEP_HOPPER)
    assert all(torch.equal(*pair) for pair in zip(narrow, shipped, strict=True))
    x, weight = whole(ROWS, INPUTS), whole(WIDTH, INPUTS)
    products = [
        linear.triton_linear(x, weight, tile=tile)
        for tile in (tiles.LINEAR_DECODE_NARROW, tiles.LINEAR_DECODE)
    ]
    assert torch.equal(*products)


def test_launches_that_begin_early_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = stepped(tiles.STEP_HOPPER)
    monkeypatch.setattr(step, "begins_early", lambda *_: True)
    result = stepped(tiles.STEP_HOPPER)
    assert all(torch.equal(*pair) for pair in zip(result, expected, strict=True))


def test_only_steps_of_few_streams_on_hopper_begin_early() -> None:
    """Those that have been measured: others become slower, or have no such launch."""
    half = torch.bfloat16
    for rows, early in ((1, True), (64, True), (256, False), (1024, False)):
        for choose in (tiles.step_tile, tiles.decode_tile):
            assert begins_early(choose(rows, half, HOPPER), HOPPER) == early
    assert begins_early(tiles.step_tile(1, half, HOPPER, fast=True), HOPPER)
    assert not begins_early(tiles.step_tile(2, half, HOPPER, fast=True), HOPPER)
    for place in (AMPERE, BLACKWELL):
        for fast in (False, True):
            assert not begins_early(tiles.step_tile(1, half, place, fast), place)


def test_a_candidate_changes_only_the_tiles_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen_tiles() -> list[object]:
        half = torch.bfloat16
        return [
            tiles.step_tile(1, half, HOPPER),
            tiles.decode_tile(1, half, HOPPER),
            tiles.step_tile(1024, half, HOPPER),
            tiles.decode_tile(1024, half, HOPPER),
        ]

    monkeypatch.setattr(support, "_triton_version", lambda: (3, 9))
    shipped = chosen_tiles()
    for candidate, expected in {
        Candidate.NARROW_STEP: [tiles.STEP_NARROW, tiles.LINEAR_DECODE_NARROW, *shipped[2:]],
        Candidate.MERGED_STEP: shipped,
    }.items():  # fmt: skip
        candidates.choose({candidate})
        assert chosen_tiles() == expected, candidate
    candidates.choose({Candidate.NARROW_STEP})
    monkeypatch.setattr(support, "_triton_version", lambda: (3, 7))
    assert chosen_tiles() == shipped, "Triton has another instruction for 8 columns"
    assert tiles.step_tile(1, torch.bfloat16, AMPERE) == tiles.STEP_NARROW


def test_a_candidate_says_where_it_cannot_run_and_is_not_used_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    candidates.choose(set(Candidate))
    monkeypatch.setattr(support, "_triton_version", lambda: (3, 6))
    refused = {
        (each, place)
        for each in Candidate
        for place in (AMPERE, HOPPER, BLACKWELL)
        if why_not(each, place)
    }
    assert refused == {
        (Candidate.NARROW_STEP, HOPPER),
        (Candidate.NARROW_STEP, BLACKWELL),
    }
    assert "Triton 3.9" in why_not(Candidate.NARROW_STEP, HOPPER)
