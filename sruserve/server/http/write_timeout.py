"""Limit the time that a connection waits for a client that reads too slowly."""

import asyncio
from typing import cast

from sruserve.server.http.connections import PeerConnections

# Unsent bytes beyond which a transport pauses its writer, and below which it resumes.
_FULL_BYTES, _LOW_BYTES = 16 << 10, 4 << 10
# The client has read at least this when a full transport resumes writing.
_READ_BYTES = _FULL_BYTES - _LOW_BYTES
_BYTES_PER_SECOND = 16 << 10  # a slower client uses up its time
_STUCK_SECONDS = 1.0  # after which a client that has read too little gives way to new connections


class WriteTimeout(asyncio.Protocol):
    """Closes a connection whose client reads too slowly, so that replies do not stay in memory.

    A client may let the server wait for the time of an idle connection. The bytes that it reads
    restore some of that time.

    A connection that is closing with unsent bytes gives way to new ones, and so does one whose
    client has read too little for a second, if no idle one is left.
    """

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    timeout_keep_alive: int
    _write_timer: asyncio.TimerHandle | None = None
    _spent_seconds = 0.0  # of the client's time
    _full_since, _full_bytes = 0.0, 0
    _close_timer: asyncio.TimerHandle | None = None  # while it closes with unsent bytes
    _peer: PeerConnections
    detached = False  # the connection is closed, or another protocol has it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let the transport hold little that the client does not read."""
        cast(asyncio.Transport, transport).set_write_buffer_limits(_FULL_BYTES, _LOW_BYTES)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers."""
        self.stop_waiting()
        if self._close_timer is not None:
            self._close_timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the timer, because the client does not read fast enough."""
        super().pause_writing()
        self._full_since = self.loop.time()
        self._full_bytes = self.transport.get_write_buffer_size()
        self._write_timer = self.loop.call_later(_STUCK_SECONDS, self._get_stuck)

    def _get_stuck(self) -> None:
        if not self.detached:
            self._peer.stuck[self] = None
        waited = self.loop.time() - self._full_since
        remaining = self.timeout_keep_alive - self._spent_seconds - waited
        self._write_timer = self.loop.call_later(remaining, self.transport.abort)

    def resume_writing(self) -> None:
        """Stop the timer, because the client has read most of the written bytes."""
        self.stop_waiting()
        waited = self.loop.time() - self._full_since
        read = max(_READ_BYTES, self._full_bytes - self.transport.get_write_buffer_size())
        self._spent_seconds = max(0.0, self._spent_seconds + waited - read / _BYTES_PER_SECOND)
        super().resume_writing()

    def eof_received(self) -> None:
        """Limit the time of closing: the transport closes itself when the client stops sending."""
        self.finish()

    def finish(self) -> None:
        """Abort a closing transport if the client does not read the unsent bytes in time."""
        if self._close_timer is None and self.transport.get_write_buffer_size():
            self._close_timer = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)
            if not self.detached:
                self._peer.idle[self] = None

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def stop_waiting(self) -> None:
        """Stop the write timer."""
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
            if not self.detached:
                self._peer.stuck.pop(self, None)
