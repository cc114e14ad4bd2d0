"""Which kept states go to the host, and which ones stay."""

import pytest
import torch

from sruserve.model.state import StateLayout
from sruserve.server.engine.state_cache.cache import CachedState, CacheFull, StateCache
from sruserve.server.engine.state_cache.pool import HostRows, StatePool
from sruserve.server.engine.state_cache.transfers import TransferQueue
from sruserve.server.metrics.metrics import EngineMetrics, render
from tests.server.engine.hand_copy_stream import HandCopyStream


class Tiers:
    """Ten device rows, of which two are for running streams, and ten on the host."""

    def __init__(self) -> None:
        self.pool = StatePool(10, StateLayout([("c", (3,))]))
        self.copy_stream = HandCopyStream()
        self.transfers = TransferQueue(self.pool, self.copy_stream)
        self.host = HostRows(10, 3, self.copy_stream.allocate)
        self.cache = StateCache(self.pool, self.transfers, self.host, 2)

    def insert(self, count: int) -> list[CachedState]:
        self.cache.reserve(count)
        rows = self.pool.acquire(count)
        self.pool.rows[rows] = torch.arange(float(count)).unsqueeze(1).expand(-1, 3)
        return [self.cache.insert(row) for row in rows]

    def arrive(self) -> None:
        self.copy_stream.allowed = -1
        self.transfers.poll()


@pytest.fixture
def tiers() -> Tiers:
    return Tiers()


def on_host(cache_entries: list[CachedState]) -> list[int]:
    return [i for i, cached in enumerate(cache_entries) if cached.row < 0]


def test_the_least_recently_used_go_first(tiers: Tiers) -> None:
    entries = tiers.insert(6)
    for used in (1, 0):
        tiers.cache.pin(entries[used])
        tiers.cache.unpin(entries[used])
    tiers.cache.offload(4)
    tiers.arrive()
    assert on_host(entries) == [2, 3, 4, 5]
    assert (tiers.cache.on_device, tiers.cache.on_host) == (2, 4)


def test_a_state_that_is_about_to_be_read_stays(tiers: Tiers) -> None:
    entries = tiers.insert(6)
    for cached in entries[:5]:
        tiers.cache.pin(cached)
    tiers.cache.offload(1)
    tiers.arrive()
    assert on_host(entries) == [5]


def test_a_state_that_is_read_while_it_leaves_stays_and_one_that_is_dropped_is_free(
    tiers: Tiers,
) -> None:
    entries = tiers.insert(4)
    tiers.cache.offload(4)
    tiers.cache.pin(entries[1])
    tiers.cache.free(entries[2])
    assert (len(tiers.pool), tiers.cache.on_device) == (4, 4)
    tiers.arrive()
    assert on_host(entries) == [0, 2, 3]
    assert tiers.pool.rows[entries[1].row].tolist() == [1.0] * 3
    assert (len(tiers.pool), len(tiers.host)) == (1, 2)
    assert (tiers.cache.on_device, tiers.cache.on_host) == (1, 2)


def test_what_is_on_its_way_is_not_sent_twice(tiers: Tiers) -> None:
    tiers.insert(8)
    tiers.cache.offload(3)
    tiers.cache.offload(3)
    tiers.arrive()
    assert tiers.cache.on_host == 3


@pytest.mark.parametrize("when", ["refuse", "spoil"])
def test_a_state_that_could_not_leave_is_still_there(tiers: Tiers, when: str) -> None:
    entries = tiers.insert(4)
    setattr(tiers.copy_stream, when, RuntimeError("a broken bus"))
    tiers.cache.offload(4)
    tiers.arrive()
    assert on_host(entries) == []
    assert (tiers.cache.on_device, len(tiers.host)) == (4, 0)
    tiers.cache.offload(4)
    tiers.arrive()
    assert on_host(entries) == [0, 1, 2, 3]


def test_a_state_comes_back_as_it_left_and_stays_while_it_is_copied(tiers: Tiers) -> None:
    entries = tiers.insert(5)
    tiers.cache.offload(5)
    tiers.arrive()
    tiers.copy_stream.allowed = len(tiers.copy_stream.copies)
    rows = tiers.pool.acquire(2)
    transfer = tiers.cache.load(entries[3:], rows)
    for cached in entries:
        tiers.cache.free(cached)
    assert (transfer.done(), len(tiers.host)) == (False, 2)
    tiers.arrive()
    assert tiers.pool.rows[rows].tolist() == [[3.0] * 3, [4.0] * 3]
    assert len(tiers.host) == 0


def test_no_more_is_promised_than_both_tiers_can_hold(tiers: Tiers) -> None:
    tiers.cache.reserve(18)
    with pytest.raises(CacheFull):
        tiers.cache.reserve(1)
    tiers.cache.unreserve(1)
    tiers.cache.reserve(1)


def test_every_tier_has_series_of_its_own() -> None:
    metrics = EngineMetrics("tiered")
    metrics.states("device", 3, 300)
    metrics.states("host", 2, 200)
    text = render()[0].decode()
    for line in (
        'sru_streams{model="tiered",tier="device"} 3.0',
        'sru_state_bytes{model="tiered",tier="host"} 200.0',
    ):
        assert line in text
