"""Detect disconnects while reading is paused; a transport reports them only while it reads."""

import asyncio
import select

from uvicorn.protocols.http.flow_control import FlowControl

_POLL_SECONDS = 0.5


class DisconnectWatch:
    """Aborts connections whose clients leave while reading is paused.

    Pauses are far more frequent than disconnects, so a pause makes no system call.

    poll_seconds: the time between two checks of the paused connections.
    """

    def __init__(self, poll_seconds: float = _POLL_SECONDS) -> None:
        self.poll_seconds = poll_seconds
        self._watched: set[asyncio.Transport] = set()
        self._polling = False

    def watch(self, transport: asyncio.Transport) -> None:
        """Abort the transport soon after its client has stopped sending."""
        self._watched.add(transport)
        if not self._polling:
            self._schedule_poll()

    def forget(self, transport: asyncio.Transport) -> None:
        """Stop watching a transport that reads again or is closed."""
        self._watched.discard(transport)

    def _schedule_poll(self) -> None:
        self._polling = True
        asyncio.get_running_loop().call_later(self.poll_seconds, self._poll)

    def _poll(self) -> None:
        self._polling, transports, poll = False, dict[int, asyncio.Transport](), select.poll()
        for transport in self._watched:
            if not transport.is_closing():
                descriptor = transport.get_extra_info("socket").fileno()
                poll.register(descriptor, select.POLLRDHUP)
                transports[descriptor] = transport
        self._watched = set(transports.values())
        for descriptor, _ in poll.poll(0):
            transports[descriptor].abort()
        if self._watched:
            self._schedule_poll()


class Flow(FlowControl):
    """Flow control that pauses reading for uvicorn, and while bytes wait to be parsed."""

    _unparsed = False

    def __init__(self, transport: asyncio.Transport, disconnects: DisconnectWatch) -> None:
        super().__init__(transport)
        self._disconnects = disconnects

    def hold(self) -> None:
        """Pause reading until `release`."""
        if not self._unparsed:
            self._unparsed = True
            if not self.read_paused:
                self._pause()

    def release(self) -> None:
        """Resume reading, unless uvicorn has paused it."""
        if self._unparsed:
            self._unparsed = False
            if not self.read_paused:
                self._resume()

    def pause_reading(self) -> None:
        """Pause reading for uvicorn."""
        if not self.read_paused:
            self.read_paused = True
            if not self._unparsed:
                self._pause()

    def resume_reading(self) -> None:
        """Resume reading for uvicorn."""
        if self.read_paused:
            self.read_paused = False
            if not self._unparsed:
                self._resume()

    def _pause(self) -> None:
        self._transport.pause_reading()
        self._disconnects.watch(self._transport)

    def _resume(self) -> None:
        self._disconnects.forget(self._transport)
        self._transport.resume_reading()
