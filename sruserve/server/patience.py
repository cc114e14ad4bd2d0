"""How long a connection waits for a client that hardly takes what it was sent."""

import asyncio

# A transport that was full is no more when the client has taken so many bytes.
_TAKEN_BYTES = 48 << 10
_BYTES_PER_SECOND = 16 << 10  # that a client has to take, or else it uses up its time


class Patience(asyncio.Protocol):
    """Hangs up on a client that takes nothing for the time of an idle connection, or too little.

    The time that a client lets the server wait is taken off that time, and what it takes earns
    some of it back: so a reply is not held in memory for hours, whoever reads it.
    """

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    timeout_keep_alive: int
    _patience: asyncio.TimerHandle | None = None
    _spent = 0.0  # seconds of it
    _full_since = 0.0

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left."""
        self.stop_waiting()
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

    def stop_waiting(self) -> None:
        """Do not hang up."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
