"""How long a connection waits for a client that takes nothing of what it was sent."""

import asyncio


class Patience(asyncio.Protocol):
    """Hangs up on such a client after the time of an idle connection."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    timeout_keep_alive: int
    _patience: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left."""
        self.stop_waiting()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not keep up: replies wait for it."""
        super().pause_writing()
        self._patience = self.loop.call_later(self.timeout_keep_alive, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has taken what was written."""
        self.stop_waiting()
        super().resume_writing()

    def stop_waiting(self) -> None:
        """Do not hang up."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
