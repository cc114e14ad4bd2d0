"""The text of all metrics, rendered once for all requests at about the same time."""

import asyncio
import time
from collections.abc import Callable

from sruserve.server.metrics.metrics import render
from sruserve.server.offload import run_in_thread

_SECONDS = 1.0
# A text is served for longer if rendering it took more than this share of a second.
_SHARE, _MAX_TIMES = 1 / 20, 10.0


class MetricsPage:
    """Renders once at a time. Requests meanwhile wait for the text; requests soon after reuse it.

    A rendering takes tens of milliseconds of Python, for a part of which the event loop waits.

    seconds: how long a text is served; longer if the server is too busy to render it quickly.
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
        """The text of all metrics, at most about `seconds` old, and its content type."""
        if self._rendering is None:
            if self._clock() < self._until:
                return self._page
            self._rendering = asyncio.create_task(self._render())
        return await asyncio.shield(self._rendering)  # other requests wait for it, too

    async def _render(self) -> tuple[bytes, str]:
        begin = self._clock()
        try:
            self._page = await run_in_thread("metrics", self._make)
            end = self._clock()
            times = (end - begin) / (_SHARE * _SECONDS)
            self._until = end + self.seconds * max(1.0, min(_MAX_TIMES, times))
            return self._page
        finally:
            self._rendering = None
