"""Moves arrive whole or not at all, and no row is used again before its move has ended."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from sruserve.model.state import StateLayout
from sruserve.server.engine.state_cache.copy_stream import InlineCopyStream
from sruserve.server.engine.state_cache.pool import HostRows, StatePool
from sruserve.server.engine.state_cache.transfers import TransferQueue
from tests.server.engine.hand_copy_stream import HandCopyStream

WIDTH = 3


@pytest.fixture
def pool() -> StatePool:
    return StatePool(8, StateLayout([("c", (WIDTH,))]))


@pytest.fixture
def copy_stream() -> HandCopyStream:
    return HandCopyStream()


@pytest.fixture
def transfers(pool: StatePool, copy_stream: HandCopyStream) -> Iterator[TransferQueue]:
    transfers = TransferQueue(pool, copy_stream, staging_bytes=4 * pool.row_bytes)
    yield transfers
    copy_stream.allowed = -1
    transfers.synchronize()
    assert not transfers.busy
    assert len(transfers._staging) == 0, "staging memory leaked"


class Calls(TorchFunctionMode):
    """Counts the calls that move blocks of rows to and from the device."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        name = getattr(func, "__name__", "")
        if name == "index_copy_" or (name == "copy_" and args[0].dim() == 2):
            self.counts[name] = self.counts.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def states(count: int, first: float = 1.0) -> list[torch.Tensor]:
    return [torch.full((WIDTH,), first + i) for i in range(count)]


def numbered(host: HostRows) -> HostRows:
    """Claim all rows, and fill each with its number, counted from 1."""
    for row in host.acquire(host.free):
        host[row].fill_(row + 1.0)
    return host


def test_on_the_cpu_a_move_is_done_when_it_is_requested(pool: StatePool) -> None:
    transfers = TransferQueue(pool, InlineCopyStream())
    rows = pool.acquire(2)
    assert transfers.upload(states(2), rows).done()
    taken = transfers.download(rows)
    assert taken.done()
    pool.rows.fill_(9.0)
    assert torch.equal(torch.stack(taken.states), torch.stack(states(2)))
    assert not transfers.busy


def test_what_is_uploaded_and_downloaded_again_is_the_same(
    pool: StatePool, transfers: TransferQueue, copy_stream: HandCopyStream
) -> None:
    rows = pool.acquire(2)
    upload = transfers.upload(uploaded := states(2), rows)
    for state in uploaded:
        state.fill_(torch.nan)  # it was staged: its owner may do with it what it likes
    download = transfers.download(rows)
    assert not upload.done()
    assert not download.done()
    copy_stream.allowed = 1
    assert upload.done()
    assert not download.done()
    copy_stream.allowed = 2
    assert download.done()
    assert torch.equal(torch.stack(download.states), torch.stack(states(2)))


def test_states_that_lie_side_by_side_arrive_in_one_copy_and_one_scatter(
    pool: StatePool, transfers: TransferQueue, copy_stream: HandCopyStream
) -> None:
    host = numbered(HostRows(6, WIDTH, copy_stream.allocate))
    rows = pool.acquire(5)
    calls = Calls()
    copy_stream.allowed = -1
    with calls:
        transfers.load(host, [2, 3, 4], [rows[4], rows[0], rows[2]]).wait()
    assert calls.counts == {"copy_": 1, "index_copy_": 1}
    assert [float(pool.rows[row, 0]) for row in rows] == [4.0, 0.0, 5.0, 0.0, 3.0]


def test_128_scattered_states_leave_in_one_copy_and_arrive_in_one() -> None:
    copy_stream = HandCopyStream(-1)
    pool = StatePool(128, StateLayout([("c", (WIDTH,))]))
    transfers = TransferQueue(pool, copy_stream)
    host = HostRows(256, WIDTH, copy_stream.allocate)
    scattered = host.acquire(256)[::2]
    rows = pool.acquire(128)
    pool.rows.copy_(torch.arange(128.0).unsqueeze(1).expand(-1, WIDTH))
    with Calls() as calls:
        transfers.offload(rows, host, scattered).wait()
    assert calls.counts == {"copy_": 1}
    assert [float(host[row][0]) for row in scattered] == list(range(128))
    with Calls() as calls:
        transfers.load(host, scattered, rows[::-1]).wait()
    assert calls.counts == {"copy_": 1, "index_copy_": 1}
    assert pool.rows[rows[::-1], 0].tolist() == list(range(128))
    assert len(transfers._staging) == 0


def test_large_states_are_not_copied_twice_on_the_host() -> None:
    copy_stream = HandCopyStream(-1)
    pool = StatePool(4, StateLayout([("c", (75_000,))]))
    transfers = TransferQueue(pool, copy_stream)
    host = numbered(HostRows(6, 75_000, copy_stream.allocate))
    rows = pool.acquire(3)
    with Calls() as calls:
        transfers.load(host, [0, 2, 4], rows).wait()
    assert calls.counts == {"copy_": 3, "index_copy_": 1}
    assert pool.rows[rows, 0].tolist() == [1.0, 3.0, 5.0]


def test_what_arrives_by_way_of_staging_is_not_overwritten_before_it_is_copied(
    pool: StatePool, transfers: TransferQueue, copy_stream: HandCopyStream
) -> None:
    host = numbered(HostRows(6, WIDTH, copy_stream.allocate))
    rows = pool.acquire(8)
    loads = [transfers.load(host, [0, 2], rows[:2]), transfers.load(host, [1, 3], rows[2:4])]
    direct = transfers.load(host, [3, 5], rows[4:6])  # no staging is left, and it does not wait
    last = transfers.upload(states(2, 7.0), rows[6:])
    assert [each.launched for each in (*loads, direct, last)] == [True, True, True, False]
    assert not pool.rows[rows].any()
    copy_stream.allowed = -1
    transfers.synchronize()
    assert pool.rows[rows, 0].tolist() == [1.0, 3.0, 2.0, 4.0, 4.0, 6.0, 7.0, 8.0]


def test_what_leaves_by_way_of_staging_keeps_its_rows_until_it_has_arrived(
    pool: StatePool, transfers: TransferQueue, copy_stream: HandCopyStream
) -> None:
    host = HostRows(6, WIDTH, copy_stream.allocate)
    host.acquire(6)
    rows = pool.acquire(2)
    pool.rows[rows] = torch.stack(states(2))
    transfer = transfers.offload(rows, host, [1, 4])
    for row in rows:
        transfers.release(row)
    transfers.poll()
    assert len(pool) == len(transfers._staging) == 2
    assert host[1].isnan().all()
    copy_stream.allowed = 1
    transfers.poll()
    assert transfer.done()
    assert len(pool) == len(transfers._staging) == 0
    assert [float(host[row][0]) for row in (1, 4)] == [1.0, 2.0]


def test_waiting_for_a_move_waits_for_those_before_it(
    pool: StatePool, transfers: TransferQueue
) -> None:
    rows = pool.acquire(6)
    pairs = [rows[:2], rows[2:4], rows[4:]]
    uploads = [transfers.upload(states(2, 10.0 * i), pair) for i, pair in enumerate(pairs)]
    assert [transfer.launched for transfer in uploads] == [
        True,
        True,
        False,
    ]  # there is staging for four
    uploads[2].wait()
    assert all(transfer.done() for transfer in uploads)
    assert pool.rows[rows][:, 0].tolist() == [0, 1, 10, 11, 20, 21]


def test_moves_without_staging_memory_are_launched_in_order_when_there_is_some(
    pool: StatePool, transfers: TransferQueue, copy_stream: HandCopyStream
) -> None:
    rows = pool.acquire(8)
    uploads = [transfers.upload(states(2), rows[i : i + 2]) for i in (0, 2, 4)]
    single = transfers.upload(states(1), rows[6:7])
    copy_stream.allowed = 1
    transfers.poll()
    assert [transfer.launched for transfer in (*uploads, single)] == [True, True, True, False]


@pytest.mark.parametrize("way", ["upload", "download"])
def test_a_row_that_moves_is_released_when_it_has_moved(
    pool: StatePool, transfers: TransferQueue, copy_stream: HandCopyStream, way: str
) -> None:
    (row,) = pool.acquire(1)
    transfer = (
        transfers.download([row]) if way == "download" else transfers.upload(states(1), [row])
    )
    transfers.release(row)
    assert len(pool) == 1
    assert row not in pool.acquire(7)
    copy_stream.allowed = 1
    transfers.poll()
    assert transfer.done()
    assert len(pool) == 7


def test_a_row_that_moves_twice_is_released_after_the_second_time(
    pool: StatePool, transfers: TransferQueue, copy_stream: HandCopyStream
) -> None:
    (row,) = pool.acquire(1)
    transfers.upload(states(1), [row])
    taken = transfers.download([row])
    transfers.release(row)
    copy_stream.allowed = 1
    transfers.poll()
    assert len(pool) == 1
    copy_stream.allowed = 2
    transfers.poll()
    assert len(pool) == 0
    assert torch.equal(taken.states[0], states(1)[0])


def test_a_step_can_wait_for_a_transfer(
    pool: StatePool, transfers: TransferQueue, copy_stream: HandCopyStream
) -> None:
    (row,) = pool.acquire(1)
    transfer = transfers.upload(states(1), [row])
    assert not pool.rows[row].any()
    transfer.wait_event()
    assert torch.equal(pool.rows[row], states(1)[0])
    assert copy_stream.joined == 1


@pytest.mark.parametrize("when", ["refuse", "spoil"])
@pytest.mark.parametrize("way", ["upload", "download", "offload", "offload apart", "load apart"])
def test_a_move_that_fails_says_why_and_gives_back_what_it_held(
    pool: StatePool, transfers: TransferQueue, copy_stream: HandCopyStream, when: str, way: str
) -> None:
    copy_stream.allowed = -1
    (row,) = pool.acquire(1)
    host = HostRows(2, WIDTH, copy_stream.allocate)
    setattr(copy_stream, when, RuntimeError("a broken bus"))
    if way == "offload":
        transfer = transfers.offload([row], host, host.acquire(1))
    elif way.endswith("apart"):
        apart, rows = numbered(HostRows(3, WIDTH, copy_stream.allocate)), [row, *pool.acquire(1)]
        if way == "load apart":
            transfer = transfers.load(apart, [0, 2], rows)
        else:
            transfer = transfers.offload(rows, apart, [0, 2])
        assert [float(apart[i][0]) for i in (0, 2)] == [1.0, 3.0]
        pool.release(rows[1])
    else:
        transfer = (
            transfers.download([row]) if way == "download" else transfers.upload(states(1), [row])
        )
    assert transfer.done()
    assert str(transfer.error) == "a broken bus"
    assert not transfer.states
    transfers.release(row)
    assert len(pool) == 0
    assert transfers.download(pool.acquire(1)).error is None


def test_a_state_of_the_wrong_size_is_refused(pool: StatePool, transfers: TransferQueue) -> None:
    for copy_stream in (InlineCopyStream(), HandCopyStream(-1)):
        transfer = TransferQueue(pool, copy_stream).upload([torch.ones(1)], pool.acquire(1))
        assert isinstance(transfer.error, ValueError)


def test_states_that_go_to_the_host_come_back_the_same(
    pool: StatePool, transfers: TransferQueue, copy_stream: HandCopyStream
) -> None:
    copy_stream.allowed = -1
    host = HostRows(9, WIDTH, copy_stream.allocate)
    host._per_chunk = 3  # so that the rows lie in several pieces of memory
    rows = pool.acquire(8)
    pool.rows.copy_(torch.arange(8.0 * WIDTH).view(8, WIDTH))
    before = pool.rows.clone()
    places = host.acquire(9)
    host.release([places[1], places[6]])
    remaining = [*places[:1], *places[2:6], *places[7:]]
    assert transfers.offload(rows[:7], host, remaining).error is None
    pool.rows.zero_()
    assert transfers.load(host, remaining, rows[:7]).error is None
    assert torch.equal(pool.rows[rows[:7]], before[rows[:7]])
