"""Rows are cleared when they are handed out, and never handed out twice."""

import pytest
import torch

from sruserve.model.state import StateLayout
from sruserve.server.engine.pool import PoolFull, StatePool


@pytest.fixture
def pool() -> StatePool:
    return StatePool(4, StateLayout([("c", (3,))]))


def test_a_row_is_cleared_when_it_is_handed_out(pool: StatePool) -> None:
    (row,) = pool.acquire(1)
    pool.rows[row] = torch.nan
    pool.release(row)
    assert not pool.rows[pool.acquire(4)].any()


def test_live_rows_are_never_handed_out_again(pool: StatePool) -> None:
    assert sorted(pool.acquire(3) + pool.acquire(1)) == [0, 1, 2, 3]
    assert len(pool) == 4


def test_a_full_pool_says_so_and_hands_out_nothing(pool: StatePool) -> None:
    pool.acquire(3)
    with pytest.raises(PoolFull):
        pool.acquire(2)
    assert len(pool) == 3


def test_a_row_is_released_once(pool: StatePool) -> None:
    (row,) = pool.acquire(1)
    pool.release(row)
    with pytest.raises(KeyError):
        pool.release(row)
