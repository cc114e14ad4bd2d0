"""The text of all metrics, made once for all who ask at about the same time."""

import asyncio
import time
from collections.abc import Callable

from sruserve.server.metrics.metrics import render
from sruserve.server.offload import run_in_thread

_SECONDS = 1.0
# A text that took more than this share of a second to make is given out for longer.
_SHARE, _MOST_TIMES = 1 / 20, 10.0


class MetricsPage:
    """One rendering at a time; who asks meanwhile waits for it, and who asks soon gets its text.

    A rendering is tens of milliseconds of Python, which the event loop waits for in part.

    seconds: how long a text is given out; longer where the server is too busy to make it soon.
    """

    def __init__(
        self,
        seconds: float = _SECONDS,
        make: Callable[[], tuple[bytes, str]] = render,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds = seconds
        self._make, self._clock = make, clock
        self._page = (b"", "")
        self._until = float("-inf")
        self._rendering: asyncio.Task[tuple[bytes, str]] | None = None

    async def read(self) -> tuple[bytes, str]:
        """All metrics as they are, or were a moment ago, and their content type."""
        if self._rendering is None:
            if self._clock() < self._until:
                return self._page
            self._rendering = asyncio.create_task(self._render())
        return await asyncio.shield(self._rendering)  # others wait for it, too

    async def _render(self) -> tuple[bytes, str]:
        begin = self._clock()
        try:
            self._page = await run_in_thread("metrics", self._make)
            end = self._clock()
            times = (end - begin) / (_SHARE * _SECONDS)
            self._until = end + self.seconds * max(1.0, min(_MOST_TIMES, times))
            return self._page
        finally:
            self._rendering = None
