"""Decide when to start, replace or kill a worker, and when to give up: no processes, no clock."""

from collections import deque
from dataclasses import dataclass
from enum import Enum

LOOK_SECONDS = 1.0  # between two looks, and between two beats of a worker


class Do(Enum):
    """The action that a worker's place needs."""

    NOTHING = 0
    START = 1
    KILL = 2


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The time limits of supervision.

    beat_seconds: between two signs of life of a worker that has loaded its models.
    load_seconds: until the first one; on a GPU, kernels may have to be compiled before.
    long_life_seconds: a worker that has lived this long is replaced at once.
    max_wait_seconds: the longest wait before a worker is started again.
    deaths, within_seconds: give up after this number of short lives for each worker in this time.
    """

    beat_seconds: float = 60.0
    load_seconds: float = 1800.0
    long_life_seconds: float = 60.0
    max_wait_seconds: float = 60.0
    deaths: int = 5
    within_seconds: float = 600.0


class Silence:
    """The time since the last sign of life, while the listener was awake.

    A listener that was stopped, or delayed on a busy machine, may have missed signs of life. So one
    look adds at most twice the usual time between looks.
    """

    def __init__(self, now: float) -> None:
        self.seconds = 0.0
        self._looked = now

    def sign_of_life(self) -> None:
        """Record a sign of life."""
        self.seconds = 0.0

    def look(self, now: float) -> float:
        """The silence until now, in seconds."""
        self.seconds += min(now - self._looked, 2 * LOOK_SECONDS)
        self._looked = now
        return self.seconds


@dataclass(slots=True)
class _Place:
    """A worker's place: its worker runs since `born`, or is started at `due`."""

    due: float
    silence: Silence
    born: float = 0.0
    running: bool = False
    beating: bool = False
    next_wait: float = 1.0


class Supervision:
    """Decides for all places of workers. Times are in seconds of any clock."""

    def __init__(self, workers: int, policy: RestartPolicy, now: float) -> None:
        self._policy = policy
        self._places = [_Place(now, Silence(now)) for _ in range(workers)]
        self._deaths: deque[float] = deque()
        self._proven = False

    def started(self, place: int, now: float) -> None:
        """Record that a worker was started in a place."""
        state = self._places[place]
        state.running, state.beating = True, False
        state.born, state.silence = now, Silence(now)

    def beat(self, place: int) -> None:
        """Record a sign of life; a worker is ready with its first one."""
        state = self._places[place]
        state.beating = self._proven = True
        state.silence.sign_of_life()

    def ended(self, place: int, now: float) -> float:
        """Record that a worker has ended; returns the seconds until the next one is started."""
        state = self._places[place]
        state.running = state.beating = False
        wait = 0.0
        if now - state.born >= self._policy.long_life_seconds:
            state.next_wait = 1.0
        else:
            wait = state.next_wait
            state.next_wait = min(2 * wait, self._policy.max_wait_seconds)
            self._deaths.append(now)
        state.due = now + wait
        return wait

    def look(self, place: int, now: float) -> Do:
        """The action that a place needs now."""
        state = self._places[place]
        if not state.running:
            return Do.START if now >= state.due else Do.NOTHING
        limit = self._policy.beat_seconds if state.beating else self._policy.load_seconds
        return Do.KILL if state.silence.look(now) > limit else Do.NOTHING

    def hopeless(self, now: float) -> str | None:
        """The reason to give up; None: continue."""
        while self._deaths and self._deaths[0] < now - self._policy.within_seconds:
            self._deaths.popleft()
        limit = self._policy.deaths * len(self._places)
        if len(self._deaths) < limit:
            return None
        return (
            f"{len(self._deaths)} workers ended soon after their start within "
            f"{now - self._deaths[0]:.0f} s"
        )

    @property
    def proven(self) -> bool:
        """Whether any worker was ever ready, so that a later failure to start may be temporary."""
        return self._proven
