"""Rows are cleared when they are handed out, and never handed out twice."""

from types import SimpleNamespace

import pytest
import torch

from sruserve.model.state import StateLayout
from sruserve.server.engine.state_cache.pool import HostRows, PoolFull, StatePool
from tests.memory import resident_bytes


@pytest.fixture
def pool() -> StatePool:
    pool = StatePool(4, StateLayout([("c", (3,))]))
    pool.rows.fill_(torch.nan)  # what memory holds that nobody has written to
    return pool


def test_a_row_is_cleared_when_it_is_handed_out(pool: StatePool) -> None:
    (row,) = pool.acquire(1)
    assert not pool.rows[row].any()
    pool.rows[row] = torch.nan
    pool.release(row)
    assert not pool.rows[pool.acquire(4)].any()


def test_live_rows_are_never_handed_out_again(pool: StatePool) -> None:
    assert sorted(pool.acquire(3) + pool.acquire(1)) == [0, 1, 2, 3]
    assert len(pool) == 4


def test_many_rows_are_released_at_once_or_none(pool: StatePool) -> None:
    rows = pool.acquire(3)
    for wrong in ([rows[0], 3], [rows[0], rows[0]]):
        with pytest.raises(KeyError, match="not in use"):
            pool.release_all(wrong)
        assert len(pool) == 3
    pool.release_all(rows[:2])
    assert sorted(pool.acquire(3)) == sorted([*rows[:2], 3])


def test_a_full_pool_says_so_and_hands_out_nothing(pool: StatePool) -> None:
    pool.acquire(3)
    with pytest.raises(PoolFull):
        pool.acquire(2)
    assert len(pool) == 3


def test_rows_that_nobody_used_take_no_memory() -> None:
    pool = StatePool(1 << 16, StateLayout([("c", (1024,))]))
    pool.acquire(100)
    assert resident_bytes(pool.rows) < 32 << 20 < pool.rows.nbytes


def test_a_row_is_released_once(pool: StatePool) -> None:
    (row,) = pool.acquire(1)
    pool.release(row)
    with pytest.raises(KeyError):
        pool.release(row)


def test_rows_are_claimed_and_cleared_on_any_device_without_reading_from_it() -> None:
    pool = StatePool(4, StateLayout([("c", (3,))]), torch.device("meta"))  # reading it raises
    assert sorted(pool.acquire(3)) == [0, 1, 2]
    assert pool.free == 1


def test_rows_that_could_not_be_cleared_are_not_handed_out(
    pool: StatePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise torch.OutOfMemoryError("none left")

    on_device = SimpleNamespace(device=pool.rows.device, index_fill_=broken)
    with monkeypatch.context() as patch:
        patch.setattr(pool, "rows", on_device)
        patch.setattr(pool, "_host_rows", None)
        with pytest.raises(torch.OutOfMemoryError):
            pool.acquire(3)
    assert len(pool) == 0
    assert sorted(pool.acquire(4)) == [0, 1, 2, 3]


def test_host_memory_grows_as_it_is_claimed_and_is_claimed_again() -> None:
    taken: list[int] = []

    def allocate(rows: int, width: int) -> torch.Tensor:
        taken.append(rows)
        return torch.zeros(rows, width)

    host = HostRows(3 << 20, 1, allocate)
    assert not taken
    places = host.acquire(1 << 20)
    assert taken == [1 << 20]
    host.release(places[5:7])
    assert host.acquire(2) == places[5:7]
    assert host.free == 2 << 20
    host.acquire(2 << 20)
    assert len(taken) == 3
    with pytest.raises(PoolFull):
        host.acquire(1)
