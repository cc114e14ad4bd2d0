"""Log and trace requests on a thread of their own: the event loop only hands them over."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from queue import SimpleQueue

from sruserve.server.errors import NoProcess, faults
from sruserve.server.observation.observation import Observation

log = logging.getLogger("sruserve.observation")

Consumer = Callable[[Observation], object]

_MAX_WAITING = 8192  # observations, of about a kilobyte
# The thread gathers requests, so that it wakes seldom, and lets others run after a few of them.
_GATHER_SECONDS, _TURN = 0.02, 16


class RequestObserver:
    """Observes the requests of a process. Beyond a number that wait, observations are dropped.

    consumers: get each observation, one after the other.
    """

    def __init__(self, consumers: Sequence[Consumer], max_waiting: int = _MAX_WAITING) -> None:
        self._consumers, self._max_waiting = consumers, max_waiting
        self._waiting: SimpleQueue[Observation | None] = SimpleQueue()
        self._dropped = 0
        self._has_failed = False
        self._thread = threading.Thread(target=self._run, name="requests", daemon=True)

    def start(self) -> None:
        """Start the thread; raises `NoProcess`."""
        try:
            self._thread.start()
        except RuntimeError:
            raise NoProcess from None

    def begin(self, route: str, arrival: float) -> Observation:
        """Observe a request. arrival: on `time.perf_counter()`."""
        return Observation(route, arrival, self._take)

    def close(self, seconds: float) -> None:
        """Consume what waits, within some time. Later requests are not observed."""
        self._waiting.put(None)
        self._thread.join(seconds)

    def _take(self, observation: Observation) -> None:
        if self._waiting.qsize() < self._max_waiting:
            self._waiting.put(observation)
        else:
            self._dropped += 1

    def _run(self) -> None:
        while self._consume_waiting():
            self._report_dropped()

    def _consume_waiting(self) -> bool:
        """Wait for observations and consume all; False: the observer is closed.

        No observation outlives this call, so a thread that waits keeps none.
        """
        observation = self._waiting.get()
        time.sleep(_GATHER_SECONDS)
        for number in count(1):
            if observation is None:
                return False
            self._consume(observation)
            if number % _TURN == 0:
                time.sleep(0)
            if self._waiting.empty():
                break
            observation = self._waiting.get()
        return True

    def _consume(self, observation: Observation) -> None:
        for consumer in self._consumers:
            try:
                consumer(observation)
            except faults() as error:
                if not self._has_failed:
                    log.error("a request could not be logged or traced", exc_info=error)
                self._has_failed = True

    def _report_dropped(self) -> None:
        dropped, self._dropped = self._dropped, 0
        if dropped:
            log.warning("%d requests were neither logged nor traced: too many at once", dropped)
