"""Close connections on which no request arrives."""

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class IdleTimeout(HttpToolsProtocol):
    """Closes an idle connection after uvicorn's `timeout_keep_alive`.

    Requests are frequent, so the timer stays set while they are answered.
    """

    _idle_until: float | None = None  # while the connection waits for a request

    def _wait_for_client(self) -> None:
        """Close the connection if no request arrives."""
        self._idle_until = self.loop.time() + self.timeout_keep_alive
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_at(
                self._idle_until, self.timeout_keep_alive_handler
            )

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, or set the timer again if a request has arrived meanwhile."""
        self.timeout_keep_alive_task = None
        if self._idle_until is None:
            return
        if self.loop.time() < self._idle_until:
            self.timeout_keep_alive_task = self.loop.call_at(
                self._idle_until, self.timeout_keep_alive_handler
            )
        else:
            super().timeout_keep_alive_handler()

    def _unset_keepalive_if_required(self) -> None:
        self._idle_until = None

    def _end_timer(self) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
