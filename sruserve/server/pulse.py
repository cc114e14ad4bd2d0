"""A process's signs of life, and its end when it can no longer serve."""

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol
from weakref import WeakKeyDictionary

from sruserve.server.ending import FAILED, exit_now
from sruserve.server.supervision import LOOK_SECONDS, Silence

log = logging.getLogger("sruserve.server")

_STEP_FACTOR = 10  # a step of a large model on a slow CPU takes long


class Watched(Protocol):
    """A watched component: an engine or the gRPC server.

    what: its name in the log.
    alive: it works, or is being stopped.
    busy: it has work.
    turns: grows with its work.
    """

    @property
    def what(self) -> str: ...
    @property
    def alive(self) -> bool: ...
    @property
    def busy(self) -> bool: ...
    @property
    def turns(self) -> int: ...


class Pulse:
    """Beats once a second from the event loop, and ends the process if what it watches stays dead.

    timeout_seconds: for a component that has ended; ten times as long for a busy engine that
        finishes no step.
    beat: reports outside the event loop that it runs.
    end: makes the process drain and end.
    clock: monotonic seconds. beat_seconds: between two beats.
    failed: whether `end` was called.
    """

    def __init__(
        self,
        timeout_seconds: float,
        beat: Callable[[], None],
        end: Callable[[], None] = lambda: signal.raise_signal(signal.SIGTERM),
        *,
        clock: Callable[[], float] = time.monotonic,
        beat_seconds: float = LOOK_SECONDS,
    ) -> None:
        self.failed = False
        self._clock, self._beat_seconds = clock, beat_seconds
        self._timeout_seconds = timeout_seconds
        self._beat, self._end = beat, end
        self._task: asyncio.Task[None] | None = None
        self._silences: WeakKeyDictionary[Watched, tuple[Silence, int]] = WeakKeyDictionary()

    def start(
        self, watched: Callable[[], Iterable[Watched]], report: Callable[[], None] = lambda: None
    ) -> None:
        """Beat while the event loop runs. report: called with each beat."""
        self._task = asyncio.get_running_loop().create_task(self._run(watched, report))

    async def _run(
        self, watched: Callable[[], Iterable[Watched]], report: Callable[[], None]
    ) -> None:
        while True:
            self._beat()
            self.look(watched(), self._clock())
            report()
            await asyncio.sleep(self._beat_seconds)

    def look(self, watched: Iterable[Watched], now: float) -> None:
        """Check that all components work; end the process if one has failed for too long."""
        for component in watched:
            silence, turns = self._silences.get(component) or (Silence(now), -1)
            if component.alive and (not component.busy or component.turns != turns):
                silence.sign_of_life()
            self._silences[component] = silence, component.turns
            timeout = self._timeout_seconds * (_STEP_FACTOR if component.alive else 1)
            if silence.look(now) > timeout and not self.failed:
                self.failed = True
                fault = "finishes no step" if component.alive else "has ended"
                log.critical(
                    "%s %s: ending the process, so that it is started again", component.what, fault
                )
                self._end()


class Watchdog:
    """Ends a process whose event loop gives no sign of life. Several workers have a supervisor
    instead.

    clock: monotonic seconds. wait: waits for so many seconds. end: ends the process with a code.
    """

    def __init__(
        self,
        timeout_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
        end: Callable[[int], object] = exit_now,
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._clock, self._wait, self._end = clock, wait, end
        self._silence: Silence
        self._watches = self._logged = False

    def beat(self) -> None:
        """Report that the event loop runs. The first beat starts the watching thread."""
        if not self._watches:
            self._silence = Silence(self._clock())
            self._start()
        self._silence.sign_of_life()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._logged:
                log.error("no thread can be started to watch the event loop; trying again")
            self._logged = True
        else:
            self._watches = True

    def _run(self) -> None:
        while self._silence.look(self._clock()) <= self._timeout_seconds:
            self._wait(LOOK_SECONDS)
        log.critical("the event loop gives no sign of life: ending")
        self._end(FAILED)
