"""A process that can serve no more ends, so that whoever started it starts it again."""

import asyncio
import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest

from sruserve.server.pulse import Pulse, Watchdog


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


def test_a_process_is_told_to_end_once() -> None:
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


def test_the_silence_before_the_first_beat_does_not_count() -> None:
    done = run(
        "dog, now = Watchdog(1), time.monotonic() + 1000\n"
        "time.monotonic = lambda: now\n"
        "dog.beat()\n"
        "time.sleep(0.5)"
    )
    assert done.returncode == 0, done.stderr


def test_a_process_whose_event_loop_runs_does_not_end() -> None:
    done = run(
        "async def live():\n"
        "    Pulse(8, Watchdog(8).beat).start(list)\n"
        "    await asyncio.sleep(10)\n"
        "asyncio.run(live())"
    )
    assert done.returncode == 0, done.stderr


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
