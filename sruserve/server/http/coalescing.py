"""Write a reply's head and body in one call to the system."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from sruserve.server.http.write_timeout import WriteTimeout

_LONG_BYTES = 64 << 10  # what a transport is to know of at once, so that it can ask us to wait


class CoalescingTransport:
    """A transport that joins what is written within one turn of the event loop.

    lingers: asked before it is closed; says whether someone else does that a little later.
    """

    __slots__ = ("_lingers", "_loop", "_parts", "_transport")

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        lingers: Callable[[], bool] = lambda: False,
    ) -> None:
        self._transport, self._loop, self._lingers = transport, loop, lingers
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Write at the end of this turn."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        if len(data) >= _LONG_BYTES:
            self._flush()

    def write_now(self, data: bytes) -> None:
        """Write what nothing more of this turn will follow."""
        if self._parts:
            self.write(data)
        elif not self._transport.is_closing():
            self._transport.write(data)

    def forget(self) -> None:
        """Ask no more before closing: nothing may keep the connection in memory."""
        self._lingers = bool

    def close(self) -> None:
        """Write what is left, then close; `WriteTimeout` bounds how long the client may take."""
        if self._transport.is_closing():
            return
        self._flush()
        if not self._lingers():
            self._transport.close()
            cast(WriteTimeout, self._transport.get_protocol()).finish()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
