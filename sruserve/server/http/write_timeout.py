"""How long a connection waits for a client that hardly takes what it was sent."""

import asyncio

from sruserve.server.http.connections import Place

# A transport that was full is no more when the client has taken so many bytes.
_TAKEN_BYTES = 48 << 10
_BYTES_PER_SECOND = 16 << 10  # that a client has to take, or else it uses up its time


class WriteTimeout(asyncio.Protocol):
    """Hangs up on a client that takes nothing for the time of an idle connection, or too little.

    The time that a client lets the server wait is taken off that time, and what it takes earns
    some of it back: so a reply is not held in memory for hours, whoever reads it.

    A connection that is closed with a rest unsent gives way to new ones.
    """

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    timeout_keep_alive: int
    _patience: asyncio.TimerHandle | None = None
    _spent = 0.0  # seconds of it
    _full_since = 0.0
    _ending: asyncio.TimerHandle | None = None  # it is closed, and the client has not all of it
    _place: Place
    _left = False  # the connection is closed, or is no longer this protocol's

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left."""
        self.stop_waiting()
        if self._ending is not None:
            self._ending.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not keep up: replies wait for it."""
        super().pause_writing()
        self._full_since = self.loop.time()
        left = self.timeout_keep_alive - self._spent
        self._patience = self.loop.call_later(left, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has taken what was written."""
        self.stop_waiting()
        waited = self.loop.time() - self._full_since
        self._spent = max(0.0, self._spent + waited - _TAKEN_BYTES / _BYTES_PER_SECOND)
        super().resume_writing()

    def eof_received(self) -> None:
        """The client sends no more, and the transport closes itself."""
        self.finish()

    def finish(self) -> None:
        """The transport closes when the client has taken the rest, or when the time is over."""
        if self._ending is None and self.transport.get_write_buffer_size():
            self._ending = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)
            if not self._left:
                self._place.idle[self] = None

    def give_way(self) -> None:
        """Close at once, because a new connection needs the room."""
        self.transport.abort()

    def stop_waiting(self) -> None:
        """Do not hang up."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
