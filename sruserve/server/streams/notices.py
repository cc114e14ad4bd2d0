"""Lines of the log that every request would write again."""

import logging
import time

log = logging.getLogger("sruserve.streams")

_AGAIN_SECONDS = 60.0


class Notice:
    """Logs a problem, unless that was the last one and has just been logged."""

    def __init__(self) -> None:
        self._told, self._told_at = "", 0.0

    def tell(self, problem: str) -> None:
        """Log what is wrong."""
        now = time.monotonic()
        if problem != self._told or now > self._told_at + _AGAIN_SECONDS:
            log.error(problem)
            self._told, self._told_at = problem, now

    def forget(self) -> None:
        """It is over: the same problem is news."""
        self._told = ""
