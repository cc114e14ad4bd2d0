"""The received bytes of an HTTP connection that nobody has read yet, and the end of reception."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from sruserve.server.errors import ServeError
from sruserve.server.http.connections import Connections
from sruserve.server.http.error_mapping import error_body, headers_of, status_of
from sruserve.server.http.intake import ReceiveLimits
from sruserve.server.http.request_queue import RequestQueue, drop_request


class ReceivedBytes(ReceiveLimits, RequestQueue):
    """A connection whose received bytes count in the worker's `Intake` until they are read.

    A request that arrives too slowly, or exceeds the budget, is not received to its end.

    problem: why the current request is not received to its end.
    """

    _connections: Connections
    problem: ServeError | None = None
    _unparsed: bytearray  # received bytes that wait for their turn
    _parser_bytes = 0  # of a head, or after a body, that the parser may keep
    _app_body_bytes = 0  # of an incomplete body, in the application
    _in_body = False
    _discards = False  # received bytes are dropped: the connection ends with the next reply
    _is_lingering = False  # the last reply is sent, but the client is still sending

    def expect(self, length: int) -> None:
        """Raise `Overloaded` if a body of this length would not fit now."""
        self._buffer_account.expect(length)

    def reading(self, size: int) -> None:
        """Count `size` bytes of an incomplete body that the application has received.

        Raises the error that ended the reception.
        """
        self._app_body_bytes = size
        if self.problem is not None:
            raise self.problem
        if not self.detached:
            self._buffer_account.count(self._buffered_bytes())

    def has_read(self) -> None:
        """Record that the application has the whole body, or stops receiving it."""
        self._app_body_bytes = 0
        self._buffer_account.lower(self._buffered_bytes())

    def is_receiving(self, scope: Any) -> bool:
        """Whether the body of this request is incomplete."""
        return self._in_body and self.scope is scope

    def _buffered_bytes(self) -> int:
        """Received bytes that nobody has read yet."""
        size = self._undecrypted_bytes + len(self._unparsed) + self._parser_bytes
        size += self._queued_head_bytes + self._app_body_bytes
        if self._running is not None and not self._running.response_complete:
            size += len(self._running.body)
        return size + sum(len(cycle.body) for cycle, _ in self.pipeline)

    def _count(self) -> None:
        self.count(self._buffered_bytes(), self._in_body or self._parser_bytes > 0)
        if self._in_body and not self.detached:
            self._connections.wait_for_body(self, self._peer)

    def _is_discarding(self) -> bool:
        return self._discards or self.transport.is_closing()

    def _is_reading_paused(self) -> bool:
        return self.flow.read_paused or bool(self._unparsed or self._undecrypted_bytes)

    def stop_receiving(self, problem: ServeError) -> None:
        """Stop receiving. The application answers the current request with the problem."""
        self._unparsed.clear()
        self._parser_bytes = 0
        current = self.cycle
        busy = current is not None and not current.response_complete
        if busy and self._in_body:
            self._discards, self.problem = True, problem
            current.body, current.keep_alive = bytearray(), False
            current.message_event.set()
        elif busy:  # earlier requests are not answered yet, so the next one gets no reply
            self._discards, current.keep_alive = True, False
        elif self._in_body:  # the request is answered already
            self.transport.abort()
        else:
            self._answer(problem)
        while not self._buffer_account.lower(self._buffered_bytes()) and self.pipeline:
            # the newest queued requests get no reply either: the connection ends before them
            drop_request(self.pipeline.popleft()[0])
            last = self.pipeline[0][0] if self.pipeline else self._running
            assert last is not None
            last.keep_alive = False
        if busy and not self.pipeline and self._is_free():
            self._answer(problem)  # no queued request had begun

    def _answer(self, problem: ServeError) -> None:
        """Reply with a problem that belongs to no request, and close the connection."""
        self._discards = True
        body = error_body(problem)
        headers = {**headers_of(problem), "content-type": "application/json", "connection": "close"}
        head = [f"{name}: {value}\r\n".encode() for name, value in headers.items()]
        head.append(b"content-length: %d\r\n\r\n" % len(body))
        self.transport.write(STATUS_LINE[status_of(type(problem))] + b"".join(head) + body)
        self.transport.close()

    def _linger(self) -> bool:
        """Keep the connection open for a client that is still sending; returns whether it is.

        If the connection closed at once, the client would lose the reply.
        """
        if not self._in_body or self._is_lingering:
            return False
        self._discards = self._is_lingering = True
        self._unparsed.clear()
        self.flow.release()
        self.cycle.body = bytearray()
        self._buffer_account.lower(0)
        self._peer.idle[self] = None
        self.flow.resume_reading()
        self.transport.write_eof()
        self._end_timer()
        self.timeout_keep_alive_task = self.loop.call_later(
            self._intake.grace_seconds, self.transport.abort
        )
        return True
