"""What requests have freed goes back to the system, also from between blocks that are in use."""

import threading

import pytest

from sruserve.server import freed_memory
from sruserve.server.freed_memory import FreedMemory, resident_bytes
from sruserve.server.pulse import Pulse
from tests.server.conftest import Serve

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _nothing_spare() -> None:
    """Give back what earlier tests have freed, which blocks would take instead of new memory."""
    trim = freed_memory._malloc_trim()
    assert trim is not None
    trim(0)


def fragments() -> list[bytes]:
    """Blocks of 16 MiB in use, with as much freed between them."""
    blocks = [bytes(64 << 10) for _ in range(512)]
    return blocks[::2]


def look(freed: FreedMemory, now: float) -> bool:
    """Whether memory was given back."""
    thread = freed.look(now)
    if thread is not None:
        thread.join()
    return thread is not None


def test_freed_memory_between_blocks_in_use_is_returned() -> None:
    freed = FreedMemory(spare_bytes=4 * MIB)
    assert not look(freed, 0.0)
    in_use = fragments()
    before = resident_bytes()
    assert look(freed, 60.0)
    assert resident_bytes() < before - 4 * MIB
    assert len(in_use) == 256


def test_memory_is_trimmed_at_most_once_a_minute_and_only_if_much_is_there() -> None:
    freed = FreedMemory(spare_bytes=4 * MIB)
    assert not look(freed, 0.0)
    in_use = [fragments() for _ in range(2)]
    assert not look(freed, 59.0)
    assert look(freed, 60.0)
    assert not look(freed, 119.0)
    assert len(in_use) == 2
    assert not look(FreedMemory(), 0.0)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The bytes of a process: those in use, and those that a trim gives back."""
    sizes = {"used": 100 * MIB, "free": 0}

    def trim(_: int) -> int:
        sizes["free"] = 0
        return 0

    monkeypatch.setattr(freed_memory, "resident_bytes", lambda: sum(sizes.values()))
    monkeypatch.setattr(freed_memory, "_malloc_trim", lambda: trim)
    return sizes


def trims(freed: FreedMemory, begin: int, end: int) -> list[int]:
    """When memory is given back within this time, at a look each second."""
    return [now for now in range(begin, end) if look(freed, now)]


def test_trims_that_give_nothing_back_become_rare(process: dict[str, int]) -> None:
    freed = FreedMemory(spare_bytes=4 * MIB)
    assert not look(freed, 0)
    process["used"] += 16 * MIB
    assert trims(freed, 1, 12_000) == [60, 180, 420, 900, 1860, 3780, 7380, 10_980]


def test_a_process_that_grows_again_gives_its_memory_back_within_a_minute(
    process: dict[str, int],
) -> None:
    freed = FreedMemory(spare_bytes=4 * MIB)
    assert not look(freed, 0)
    process["used"] += 16 * MIB
    assert trims(freed, 1, 4000)[-1] == 3780
    process["free"] = 3 * MIB  # less than it may have
    assert trims(freed, 4000, 7300) == []
    process["free"] = 16 * MIB
    assert trims(freed, 7300, 7360) == [7320]
    assert trims(freed, 7360, 7530) == [7380, 7500]  # useless, so the next one is due at 7740
    process["used"] += 16 * MIB
    assert trims(freed, 7530, 7710) == [7560, 7680]


def test_a_server_looks_at_its_memory(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    looked = threading.Event()
    monkeypatch.setattr(FreedMemory, "look", lambda *_: looked.set())
    pulse = Pulse(60, lambda: None, lambda: None)
    with serve("question", pulse=pulse):
        assert looked.wait(60)
