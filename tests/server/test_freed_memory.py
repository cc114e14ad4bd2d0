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


def test_freed_memory_between_blocks_in_use_is_given_back() -> None:
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


def test_trims_that_give_nothing_back_become_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    used, free = 100 * MIB, 0

    def trim(_: int) -> int:
        nonlocal free
        free = 0
        return 0

    monkeypatch.setattr(freed_memory, "resident_bytes", lambda: used + free)
    monkeypatch.setattr(freed_memory, "_malloc_trim", lambda: trim)
    freed = FreedMemory(spare_bytes=4 * MIB)
    assert not look(freed, 0.0)
    used += 16 * MIB
    trims = [now for now in range(0, 7200, 60) if look(freed, now)]
    assert trims == [60, 120, 240, 480, 960, 1920, 3840]
    free = 16 * MIB
    assert look(freed, 7440)
    free = 16 * MIB
    assert look(freed, 11_040)  # an hour later, as was set before the last trim gave much back
    assert look(freed, 11_100)


def test_a_server_looks_at_its_memory(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    looked = threading.Event()
    monkeypatch.setattr(FreedMemory, "look", lambda *_: looked.set())
    pulse = Pulse(60, lambda: None, lambda: None)
    with serve("question", pulse=pulse):
        assert looked.wait(60)
