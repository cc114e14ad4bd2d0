"""The requests of one connection: one runs, and the pipelined ones wait for its reply."""

import asyncio
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from sruserve.server.http.close_delimited import close_delimited
from sruserve.server.http.disconnects import Flow
from sruserve.server.http.idle_timeout import IdleTimeout
from sruserve.server.http.write_timeout import WriteTimeout

MAX_PIPELINED = 16  # queued requests of one connection before reading pauses


class RequestQueue(WriteTimeout, IdleTimeout):
    """A connection that begins a request when all earlier ones are answered.

    uvicorn's `pipeline` has the queued requests, the newest first.
    """

    flow: Flow
    _running: RequestResponseCycle | None = None
    _queued_head_bytes = 0  # of pipelined requests

    def is_alone(self) -> bool:
        """Whether the worker has no request on any connection but one that runs."""
        return len(self.tasks) == 1

    def _is_free(self) -> bool:
        return self._running is None or self._running.response_complete

    def _may_begin(self) -> bool:
        return bool(self.pipeline) and self._is_free()

    def _begin_next(self) -> None:
        """Begin the oldest queued request, and resume reading if few are queued."""
        self._start_asgi_task(*self.pipeline.pop())
        if not self.pipeline:
            self._queued_head_bytes = 0
        if len(self.pipeline) < MAX_PIPELINED:
            self.flow.resume_reading()

    def _new_cycle(self, *, keep_alive: bool) -> RequestResponseCycle:
        return RequestResponseCycle(
            self.scope,
            self.transport,
            self.flow,
            self.logger,
            self.access_logger,
            self.access_log,
            self.server_state.default_headers,
            asyncio.Event(),
            self.expect_100_continue,
            keep_alive,
            self.on_response_complete,
        )

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = close_delimited(app)
        self._running = cycle
        self._peer.idle.pop(self, None)
        task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def _forget_request(self) -> None:
        """Free the head of the last request, so that idle connections keep none."""
        if self._running is None or self._running.scope is self.scope:
            self.headers, self.scope = [], None  # type: ignore[assignment]
        self.cycle, self._running = None, None  # type: ignore[assignment]


def drop_request(cycle: RequestResponseCycle | None) -> None:
    """Free a request that never begins: it and its connection refer to each other."""
    if cycle is not None:
        forget_connection(cycle.scope)
        cycle.body = bytearray()
        cycle.on_response = _do_nothing


def forget_connection(scope: Any) -> None:
    """Remove the reference of a request's scope to its connection."""
    scope.pop("connection", None)


def _do_nothing() -> None:
    """Replace `on_response_complete`, as uvicorn does for requests that have ended."""
