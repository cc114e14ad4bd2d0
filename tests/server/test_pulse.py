"""A process that can serve no more ends, so that whoever started it starts it again."""

import asyncio
import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest

from sruserve.server.pulse import Pulse, Watchdog
from tests.server.hand_clock import HandClock


@dataclass(eq=False)
class Engine:
    what: str = "an engine"
    alive: bool = True
    busy: bool = False
    turns: int = 0


def ends_after(engine: Engine, *, turns: int = 0, seconds: int = 1000) -> int | None:
    """After how many seconds a process with such an engine ends; None: it does not."""
    ends: list[None] = []
    pulse = Pulse(60, lambda: None, lambda: ends.append(None))
    for now in range(seconds):
        pulse.look([Engine(), engine], now)
        engine.turns += turns
        if ends:
            assert pulse.failed
            return now
    assert not pulse.failed
    return None


@pytest.mark.parametrize(
    ("engine", "turns", "seconds"),
    [
        (Engine(alive=False), 0, 61),
        (Engine(alive=False, busy=True), 0, 61),
        (Engine(busy=True), 0, 601),
        (Engine(busy=True), 1, None),
        (Engine(), 0, None),
    ],
    ids=["dead", "dead with work", "stuck", "at work", "idle"],
)
def test_an_engine_that_serves_no_more_ends_the_process(
    engine: Engine, turns: int, seconds: int | None
) -> None:
    assert ends_after(engine, turns=turns) == seconds


def test_a_process_gets_one_signal_to_end() -> None:
    ends: list[None] = []
    pulse = Pulse(1, lambda: None, lambda: ends.append(None))
    engine = Engine(alive=False)
    for now in range(100):
        pulse.look([engine], now)
    assert len(ends) == 1


def test_an_engine_that_is_replaced_in_time_is_forgotten() -> None:
    ends: list[None] = []
    pulse = Pulse(60, lambda: None, lambda: ends.append(None))
    for now in range(600):
        pulse.look([Engine(alive=False)], now)  # another one each time
    assert not ends


def test_the_event_loop_beats() -> None:
    async def run() -> None:
        beaten = asyncio.Event()
        Pulse(60, beaten.set).start(list)
        await asyncio.wait_for(beaten.wait(), 60)

    asyncio.run(run())


def run(code: str) -> subprocess.CompletedProcess[str]:
    begin = "import asyncio, time\nfrom sruserve.server.pulse import *\n"
    return subprocess.run(
        [sys.executable, "-c", begin + code],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_process_whose_event_loop_hangs_ends_with_a_reason() -> None:
    done = run(
        "async def hang():\n"
        "    Pulse(1, Watchdog(1).beat).start(list)\n"
        "    await asyncio.sleep(0.1)\n"
        "    while True: pass\n"
        "asyncio.run(hang())"
    )
    assert done.returncode == 1
    assert "no sign of life" in done.stderr


class HandWatchdog:
    """A watchdog that looks once after each beat, a second later; in a silence, one look follows
    another.

    looks: how many there were. over: set once it ends the process.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self.looks, self.over, self.clock = 0, threading.Event(), HandClock()
        self._beaten, self._silent = threading.Event(), False
        self._watchdog = Watchdog(
            timeout_seconds, clock=self.clock, wait=self._wait, end=lambda _: self.over.set()
        )

    def beat(self) -> None:
        self._watchdog.beat()
        self._beaten.set()

    def be_silent(self) -> None:
        self._silent = True
        self._beaten.set()

    def _wait(self, seconds: float) -> None:
        if not self._silent:
            self._beaten.wait()
            self._beaten.clear()
        self.looks += 1
        self.clock.now += seconds


def test_the_silence_before_the_first_beat_does_not_count() -> None:
    watchdog = HandWatchdog(8)
    watchdog.clock.now += 1000
    watchdog.beat()
    watchdog.be_silent()
    assert watchdog.over.wait(60)
    assert watchdog.looks == 9


def test_a_process_ends_once_its_event_loop_runs_no_more() -> None:
    watchdog = HandWatchdog(8)

    async def run() -> None:
        Pulse(8, watchdog.beat, beat_seconds=0).start(list)
        while watchdog.looks < 40 and not watchdog.over.is_set():
            await asyncio.sleep(0.001)

    asyncio.run(run())
    assert not watchdog.over.is_set()
    watchdog.be_silent()
    assert watchdog.over.wait(60)


def test_a_watchdog_that_gets_no_thread_says_so_and_tries_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[str] = []

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    watchdog = Watchdog(60)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    watchdog.beat()
    watchdog.beat()
    assert caplog.text.count("no thread can be started") == 1
    monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread.name))
    watchdog.beat()
    watchdog.beat()
    assert started == ["watchdog"]
