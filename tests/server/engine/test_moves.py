"""Moves arrive whole or not at all, and no row is used again before its move has ended."""

from collections.abc import Iterator

import pytest
import torch

from sruserve.model.state import StateLayout
from sruserve.server.engine.lanes import HostLane
from sruserve.server.engine.moves import Moves
from sruserve.server.engine.pool import HostRows, StatePool
from tests.server.engine.hand_lane import HandLane

WIDTH = 3


@pytest.fixture
def pool() -> StatePool:
    return StatePool(8, StateLayout([("c", (WIDTH,))]))


@pytest.fixture
def lane() -> HandLane:
    return HandLane()


@pytest.fixture
def moves(pool: StatePool, lane: HandLane) -> Iterator[Moves]:
    moves = Moves(pool, lane, staging_bytes=4 * pool.row_bytes)
    yield moves
    lane.allowed = -1
    moves.finish()
    assert not moves.busy
    assert len(moves._staging) == 0, "staging memory leaked"


def states(count: int, first: float = 1.0) -> list[torch.Tensor]:
    return [torch.full((WIDTH,), first + i) for i in range(count)]


def test_on_the_cpu_a_move_is_done_when_it_is_asked_for(pool: StatePool) -> None:
    moves = Moves(pool, HostLane())
    rows = pool.acquire(2)
    assert moves.bring(states(2), rows).done()
    taken = moves.take(rows)
    assert taken.done()
    pool.rows.fill_(9.0)
    assert torch.equal(torch.stack(taken.states), torch.stack(states(2)))
    assert not moves.busy


def test_what_is_brought_and_taken_again_is_the_same(
    pool: StatePool, moves: Moves, lane: HandLane
) -> None:
    rows = pool.acquire(2)
    brought = moves.bring(given := states(2), rows)
    for state in given:
        state.fill_(torch.nan)  # it was staged: its owner may do with it what it likes
    taken = moves.take(rows)
    assert not brought.done()
    assert not taken.done()
    lane.allowed = 1
    assert brought.done()
    assert not taken.done()
    lane.allowed = 2
    assert taken.done()
    assert torch.equal(torch.stack(taken.states), torch.stack(states(2)))


def test_waiting_for_a_move_waits_for_those_before_it(pool: StatePool, moves: Moves) -> None:
    rows = pool.acquire(6)
    pairs = [rows[:2], rows[2:4], rows[4:]]
    brought = [moves.bring(states(2, 10.0 * i), pair) for i, pair in enumerate(pairs)]
    assert [move.launched for move in brought] == [True, True, False]  # there is staging for four
    brought[2].wait()
    assert all(move.done() for move in brought)
    assert pool.rows[rows][:, 0].tolist() == [0, 1, 10, 11, 20, 21]


def test_moves_without_staging_memory_are_launched_in_order_when_there_is_some(
    pool: StatePool, moves: Moves, lane: HandLane
) -> None:
    rows = pool.acquire(8)
    brought = [moves.bring(states(2), rows[i : i + 2]) for i in (0, 2, 4)]
    single = moves.bring(states(1), rows[6:7])
    lane.allowed = 1
    moves.poll()
    assert [move.launched for move in (*brought, single)] == [True, True, True, False]


@pytest.mark.parametrize("way", ["bring", "take"])
def test_a_row_that_moves_is_released_when_it_has_moved(
    pool: StatePool, moves: Moves, lane: HandLane, way: str
) -> None:
    (row,) = pool.acquire(1)
    move = moves.take([row]) if way == "take" else moves.bring(states(1), [row])
    moves.release(row)
    assert len(pool) == 1
    assert row not in pool.acquire(7)
    lane.allowed = 1
    moves.poll()
    assert move.done()
    assert len(pool) == 7


def test_a_row_that_moves_twice_is_released_after_the_second_time(
    pool: StatePool, moves: Moves, lane: HandLane
) -> None:
    (row,) = pool.acquire(1)
    moves.bring(states(1), [row])
    taken = moves.take([row])
    moves.release(row)
    lane.allowed = 1
    moves.poll()
    assert len(pool) == 1
    lane.allowed = 2
    moves.poll()
    assert len(pool) == 0
    assert torch.equal(taken.states[0], states(1)[0])


def test_steps_can_be_told_to_come_after_a_move(
    pool: StatePool, moves: Moves, lane: HandLane
) -> None:
    (row,) = pool.acquire(1)
    move = moves.bring(states(1), [row])
    assert not pool.rows[row].any()
    move.join()
    assert torch.equal(pool.rows[row], states(1)[0])
    assert lane.joined == 1


@pytest.mark.parametrize("when", ["refuse", "spoil"])
@pytest.mark.parametrize("way", ["bring", "take", "store"])
def test_a_move_that_fails_says_why_and_gives_back_what_it_held(
    pool: StatePool, moves: Moves, lane: HandLane, when: str, way: str
) -> None:
    lane.allowed = -1
    (row,) = pool.acquire(1)
    host = HostRows(2, WIDTH, lane.allocate)
    setattr(lane, when, RuntimeError("a broken bus"))
    if way == "store":
        move = moves.store([row], host, host.acquire(1))
    else:
        move = moves.take([row]) if way == "take" else moves.bring(states(1), [row])
    assert move.done()
    assert str(move.error) == "a broken bus"
    assert not move.states
    moves.release(row)
    assert len(pool) == 0
    assert moves.take(pool.acquire(1)).error is None


def test_a_state_of_the_wrong_size_is_refused(pool: StatePool, moves: Moves) -> None:
    for lane in (HostLane(), HandLane(-1)):
        move = Moves(pool, lane).bring([torch.ones(1)], pool.acquire(1))
        assert isinstance(move.error, ValueError)


def test_states_that_go_to_the_host_come_back_the_same(
    pool: StatePool, moves: Moves, lane: HandLane
) -> None:
    lane.allowed = -1
    host = HostRows(9, WIDTH, lane.allocate)
    host._per_chunk = 3  # so that the rows lie in several pieces of memory
    rows = pool.acquire(8)
    pool.rows.copy_(torch.arange(8.0 * WIDTH).view(8, WIDTH))
    before = pool.rows.clone()
    places = host.acquire(9)
    host.release([places[1], places[6]])
    kept = [*places[:1], *places[2:6], *places[7:]]
    assert moves.store(rows[:7], host, kept).error is None
    pool.rows.zero_()
    assert moves.fetch(host, kept, rows[:7]).error is None
    assert torch.equal(pool.rows[rows[:7]], before[rows[:7]])
