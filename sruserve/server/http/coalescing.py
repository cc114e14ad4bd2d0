"""Write a reply's head and body in one call to the system."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from sruserve.server.http.write_timeout import WriteTimeout

_LONG_BYTES = 64 << 10  # written at once, so that the transport can pause its writer


class CoalescingTransport:
    """A transport that joins the writes of one turn of the event loop.

    linger: called before closing; if it returns true, it closes the transport itself later.
    """

    __slots__ = ("_linger", "_loop", "_parts", "_transport", "is_closing")

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        linger: Callable[[], bool] = lambda: False,
    ) -> None:
        self._transport, self._loop, self._linger = transport, loop, linger
        self.is_closing = transport.is_closing  # each reply asks
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Write at the end of this turn of the event loop."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        if len(data) >= _LONG_BYTES:
            self._flush()

    def write_now(self, data: bytes) -> None:
        """Write at once, because no other write of this turn follows."""
        if self._parts:
            self.write(data)
        elif not self.is_closing():
            self._transport.write(data)

    def forget(self) -> None:
        """Close without `linger`, whose reference would keep the connection in memory."""
        self._linger = bool

    def close(self) -> None:
        """Flush, then close; `WriteTimeout` limits the time for a slow client."""
        if self.is_closing():
            return
        self._flush()
        if not self._linger():
            self._transport.close()
            cast(WriteTimeout, self._transport.get_protocol()).finish()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self.is_closing():
            self._transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
