"""Bypass uvicorn's ASGI messages for complete bodies, and for replies in one write.

The functions do the same as `receive` and `send` of `RequestResponseCycle` with a tenth of the
function calls, but only in the most common case. In any other case they do nothing, and the caller
uses the messages.
"""

from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

# The default headers of uvicorn, and the beginning of a reply that they encode to.
_begin: tuple[list[tuple[bytes, bytes]], bytes] = [], b""


def take_body(receive: Callable[..., Any]) -> bytes | None:
    """The body of a request if it is complete; None: use `receive`."""
    cycle = getattr(receive, "__self__", None)
    if (
        type(cycle) is not RequestResponseCycle
        or cycle.more_body
        or cycle.disconnected
        or cycle.response_complete
        or cycle.waiting_for_100_continue
        or not cycle.message_event.is_set()  # the body was received already
    ):
        return None
    if cycle.flow.read_paused:
        cycle.flow.resume_reading()
    cycle.message_event.clear()
    body, cycle.body = bytes(cycle.body), bytearray()
    return body


def write_reply(send: Callable[..., Any], headers: bytes, body: bytes) -> bool:
    """Send a reply with status 200 if it can be written at once; returns whether it was sent.

    headers: encoded, with the body's length, without the default headers.
    """
    cycle = getattr(send, "__self__", None)
    if (
        type(cycle) is not RequestResponseCycle
        or cycle.response_started
        or cycle.disconnected
        or cycle.access_log
        or not cycle.keep_alive
        or cycle.flow.write_paused
        or cycle.scope["method"] == "HEAD"
    ):
        return False
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    global _begin  # uvicorn creates a new list of these headers once a second
    if _begin[0] is not cycle.default_headers:
        lines = [b"%b: %b\r\n" % header for header in cycle.default_headers]
        _begin = cycle.default_headers, b"".join([STATUS_LINE[200], *lines])
    transport: Any = cycle.transport  # a `CoalescingTransport`
    transport.write_now(b"".join((_begin[1], headers, b"\r\n", body)))
    cycle.on_response()  # and nobody waits for a message: `receive` belongs to whoever replies
    return True
