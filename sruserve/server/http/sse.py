"""Server-sent events, sent as fast as the client reads."""

from typing import Protocol

from sruserve.server.errors import ServeError, faults
from sruserve.server.http.call import ReplyWriter
from sruserve.server.json_output import json_bytes
from sruserve.server.offload import offload
from sruserve.server.tasks.caller import Caller, ClientDisconnected
from sruserve.server.tasks.completion import Chunks, Completion
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.error_mapping import as_serve_error

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
EVENT_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # otherwise nginx buffers events
)


class Events(Protocol):
    """Encodes chunks as events, in the shape of one protocol.

    long: encoding the last events would block the event loop.
    """

    @property
    def long(self) -> bool: ...
    def of(self, chunks: Chunks, large: bool) -> bytes: ...
    def last(self) -> bytes: ...
    def error(self, problem: ServeError) -> bytes: ...


async def send_events(
    caller: Caller,
    reply: ReplyWriter,
    completion: Completion,
    events: Events,
    ping_seconds: float,
) -> None:
    """Send all chunks of a completion, then the last events.

    An error before the first event becomes an ordinary reply, and a later error an event.
    """
    caller.watch(completion.done)
    try:
        while (chunks := await completion.next_chunks(ping_seconds)) is not None:
            large = completion.is_large([chunk for _, chunk in chunks])
            await _send(reply, await offload(large, events.of, chunks, large) if chunks else PING)
        last = await offload(events.long, events.last)
        await _send(reply, last, more=False)
    except faults() as error:
        if isinstance(error, ClientDisconnected) or not reply.started:
            raise
        problem = as_serve_error(error, CompletionRequest)
        await reply.send(events.error(problem))
        raise problem from error
    finally:
        caller.unwatch()
        completion.done.cancel()  # no effect on a job that has ended


async def _send(reply: ReplyWriter, body: bytes, more: bool = True) -> None:
    if not reply.started:
        await reply.start(200, list(EVENT_HEADERS))
    await reply.send(body, more=more)


def event(value: object) -> bytes:
    """An event with a JSON value."""
    return b"data: " + json_bytes(value) + b"\n\n"


def error_event(problem: ServeError) -> bytes:
    """An error as the last event of a reply that has begun."""
    return b"data: " + problem.body() + b"\n\n" + DONE
