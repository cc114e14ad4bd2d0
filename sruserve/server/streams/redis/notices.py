"""Log a problem once, not at each request that meets it."""

import logging
import time
from collections.abc import Callable

logger = logging.getLogger("sruserve.streams")

_REPEAT_SECONDS = 60.0


class Notice:
    """Logs a problem, unless it was the last one and was logged less than a minute ago."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged, self._logged_at = "", 0.0

    def log(self, problem: str) -> None:
        """Log a problem as an error."""
        now = self._clock()
        if problem != self._logged or now > self._logged_at + _REPEAT_SECONDS:
            logger.error(problem)
            self._logged, self._logged_at = problem, now

    def reset(self) -> None:
        """The problem is over: log it again when it returns."""
        self._logged = ""
