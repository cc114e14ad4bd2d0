"""When a worker is started, replaced or killed, and when to give up: no processes, no clock."""

from collections import deque
from dataclasses import dataclass
from enum import Enum

LOOK_SECONDS = 1.0  # between two looks, and between two beats of a worker


class Do(Enum):
    """What a worker's place needs now."""

    NOTHING = 0
    START = 1
    KILL = 2


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for what.

    beat_seconds: for a sign of life of a worker that has loaded its models.
    load_seconds: for the first one; on a GPU the kernels may have to be compiled before.
    long_life_seconds: a worker that lived for as long is replaced at once.
    most_wait_seconds: the longest wait before a worker is started again.
    deaths, within_seconds: so many short lives per worker, within that time, are too many.
    """

    beat_seconds: float = 60.0
    load_seconds: float = 1800.0
    long_life_seconds: float = 60.0
    most_wait_seconds: float = 60.0
    deaths: int = 5
    within_seconds: float = 600.0


class Silence:
    """How long nothing was heard, as far as the listener was awake to hear it.

    A listener that was stopped, or had no turn on a busy machine, does not know who would have
    spoken: one look adds at most two times the usual time between looks.
    """

    def __init__(self, now: float) -> None:
        self.seconds = 0.0
        self._looked = now

    def heard(self) -> None:
        """There was a sign of life."""
        self.seconds = 0.0

    def look(self, now: float) -> float:
        """The silence up to now, in seconds."""
        self.seconds += min(now - self._looked, 2 * LOOK_SECONDS)
        self._looked = now
        return self.seconds


@dataclass(slots=True)
class _Place:
    """The worker in one place: there since `born`, or to be started at `due`."""

    due: float
    silence: Silence
    born: float = 0.0
    running: bool = False
    beating: bool = False
    next_wait: float = 1.0


class Supervision:
    """Decides for all places of workers. Every method is told the time, in seconds."""

    def __init__(self, workers: int, patience: Patience, now: float) -> None:
        self._patience = patience
        self._places = [_Place(now, Silence(now)) for _ in range(workers)]
        self._deaths: deque[float] = deque()
        self._proven = False

    def started(self, place: int, now: float) -> None:
        """A worker was started in a place."""
        at = self._places[place]
        at.running, at.beating = True, False
        at.born, at.silence = now, Silence(now)

    def beat(self, place: int) -> None:
        """A worker gave a sign of life. With its first one it is ready."""
        at = self._places[place]
        at.beating = self._proven = True
        at.silence.heard()

    def ended(self, place: int, now: float) -> float:
        """A worker has ended; returns in how many seconds the next one is started."""
        at = self._places[place]
        at.running = at.beating = False
        wait = 0.0
        if now - at.born >= self._patience.long_life_seconds:
            at.next_wait = 1.0
        else:
            wait = at.next_wait
            at.next_wait = min(2 * wait, self._patience.most_wait_seconds)
            self._deaths.append(now)
        at.due = now + wait
        return wait

    def look(self, place: int, now: float) -> Do:
        """What a place needs now: a worker, its worker's end, or nothing."""
        at = self._places[place]
        if not at.running:
            return Do.START if now >= at.due else Do.NOTHING
        patience = self._patience.beat_seconds if at.beating else self._patience.load_seconds
        return Do.KILL if at.silence.look(now) > patience else Do.NOTHING

    def hopeless(self, now: float) -> str | None:
        """Why no worker should be started any more; None: go on."""
        while self._deaths and self._deaths[0] < now - self._patience.within_seconds:
            self._deaths.popleft()
        most = self._patience.deaths * len(self._places)
        if len(self._deaths) < most:
            return None
        return (
            f"{len(self._deaths)} workers ended soon after their start within "
            f"{now - self._deaths[0]:.0f} s"
        )

    @property
    def proven(self) -> bool:
        """Whether any worker was ever ready: then a failure to start may pass."""
        return self._proven
