"""The variants that no device has judged compute what the kernels that ship do, bit for bit."""

from collections.abc import Iterator

import pytest
import torch

from sruserve.kernels import Cell, RaggedBatch, candidates
from sruserve.kernels.candidates import Candidate
from sruserve.kernels.triton import linear, step, support, tiles
from sruserve.kernels.triton import scan as triton_scan
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
    given = (whole(2, WIDTH), whole(2, WIDTH), states, rows, rows + ROWS, 0, Cell())
    x, weight = whole(ROWS, INPUTS), whole(3 * WIDTH, INPUTS)
    h = step.triton_step(x, weight, None, whole(ROWS, WIDTH), *given, tile=tile)
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
    monkeypatch.setattr(step, "begins_early", lambda _: True)
    result = stepped(tiles.STEP_HOPPER)
    assert all(torch.equal(*pair) for pair in zip(result, expected, strict=True))


def test_the_wide_scan_has_the_bits_of_the_one_that_ships(monkeypatch: pytest.MonkeyPatch) -> None:
    g, width = torch.Generator().manual_seed(0), 150
    u, x = (torch.randn(7, n * width, generator=g).half() for n in (3, 1))
    gates = torch.randn(2, 2, width, generator=g)
    rows, results = torch.arange(2), []
    for tile in (tiles.SCAN_16_BIT, tiles.SCAN_16_BIT_WIDE):
        monkeypatch.setattr(triton_scan, "scan_tile", lambda *_, tile=tile: tile)
        batch = RaggedBatch(torch.tensor([0, 4, 7]), torch.zeros(2, width), rows, rows)
        h = triton_scan.triton_scan(u, x, gates[0], gates[1], batch, 0, Cell())
        results.append((h, batch.states))
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_a_candidate_changes_only_the_tiles_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen_tiles() -> list[object]:
        half = torch.bfloat16
        return [
            tiles.step_tile(1, half, HOPPER),
            tiles.decode_tile(1, half, HOPPER),
            tiles.step_tile(1024, half, HOPPER),
            tiles.decode_tile(1024, half, HOPPER),
            tiles.scan_tile(2, 1 << 20),
        ]

    monkeypatch.setattr(support, "_triton_version", lambda: (3, 9))
    shipped = chosen_tiles()
    for candidate, expected in {
        Candidate.NARROW_STEP: [tiles.STEP_NARROW, tiles.LINEAR_DECODE_NARROW, *shipped[2:]],
        Candidate.CROWD_TILES: [
            *shipped[:2], tiles.STEP_LARGE_BATCH, tiles.LINEAR_LARGE_BATCH, shipped[4],
        ],
        Candidate.WIDE_SCAN: [*shipped[:4], tiles.SCAN_16_BIT_WIDE],
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
        (Candidate.DEPENDENT_LAUNCH, AMPERE),
        (Candidate.NARROW_STEP, HOPPER),
        (Candidate.NARROW_STEP, BLACKWELL),
    }
    assert "compute capability 9.0" in why_not(Candidate.DEPENDENT_LAUNCH, AMPERE)
    assert "Triton 3.9" in why_not(Candidate.NARROW_STEP, HOPPER)
    assert not begins_early(AMPERE)
    assert begins_early(HOPPER)
