"""A process's signs of life, and its end when it can serve no more."""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol
from weakref import WeakKeyDictionary

from sruserve.server.ending import FAILED
from sruserve.server.supervision import LOOK_SECONDS, Silence

log = logging.getLogger("sruserve.server")

_STEP_PATIENCE = 10  # a step of a large model on a slow CPU takes long, and the loop goes on


class Watched(Protocol):
    """An engine or the gRPC server, as far as it is watched.

    what: of the two it is.
    alive: it works, or was told to end.
    busy: it has something to do.
    turns: grows as it does it.
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

    patience_seconds: for what has ended; ten times that for an engine that is busy and finishes no
        step.
    beat: tells somebody outside the event loop that it runs.
    end: makes the process finish what it can, and end.
    failed: whether that was done.
    """

    def __init__(
        self,
        patience_seconds: float,
        beat: Callable[[], None],
        end: Callable[[], None] = lambda: signal.raise_signal(signal.SIGTERM),
    ) -> None:
        self.failed = False
        self._patience_seconds = patience_seconds
        self._beat, self._end = beat, end
        self._task: asyncio.Task[None] | None = None
        self._silences: WeakKeyDictionary[Watched, tuple[Silence, int]] = WeakKeyDictionary()

    def start(self, watched: Callable[[], Iterable[Watched]]) -> None:
        """Beat for as long as the running event loop does."""
        self._task = asyncio.get_running_loop().create_task(self._run(watched))

    async def _run(self, watched: Callable[[], Iterable[Watched]]) -> None:
        while True:
            self._beat()
            self.look(watched(), time.monotonic())
            await asyncio.sleep(LOOK_SECONDS)

    def look(self, watched: Iterable[Watched], now: float) -> None:
        """See whether all of them work; end the process if one has not for too long."""
        for each in watched:
            silence, turns = self._silences.get(each) or (Silence(now), -1)
            if each.alive and (not each.busy or each.turns != turns):
                silence.heard()
            self._silences[each] = silence, each.turns
            patience = self._patience_seconds * (_STEP_PATIENCE if each.alive else 1)
            if silence.look(now) > patience and not self.failed:
                self.failed = True
                fault = "finishes no step" if each.alive else "has ended"
                log.critical("%s %s: ending, to be started again", each.what, fault)
                self._end()


class Watchdog:
    """Ends a process whose event loop gives no sign of life. Where workers are, they have a
    supervisor for that."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._silence: Silence
        self._watches = self._told = False

    def beat(self) -> None:
        """The event loop runs. It is watched from its first beat on, or when a thread is there."""
        if not self._watches:
            self._silence = Silence(time.monotonic())
            self._start()
        self._silence.heard()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._told:
                log.error("no thread can be started to watch the event loop; trying again")
            self._told = True
        else:
            self._watches = True

    def _run(self) -> None:
        while self._silence.look(time.monotonic()) <= self._patience_seconds:
            time.sleep(LOOK_SECONDS)
        log.critical("the event loop gives no sign of life: ending")
        os._exit(FAILED)
