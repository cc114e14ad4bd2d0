"""Server-sent events, sent as fast as the client reads."""

import asyncio
from collections.abc import Sequence
from typing import Protocol, TypeVar

from pydantic import BaseModel

from sruserve.server.errors import ServeError, faults
from sruserve.server.http.call import ReplyWriter
from sruserve.server.http.error_mapping import error_body
from sruserve.server.json_output import json_bytes
from sruserve.server.offload import offload
from sruserve.server.tasks.caller import Caller, ClientDisconnected
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.error_mapping import as_serve_error

Piece = TypeVar("Piece")
Encoded = TypeVar("Encoded", contravariant=True)

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"
EVENT_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # otherwise nginx buffers events
)


class Streamed(Protocol[Piece]):
    """What a task streams. done: resolves after the last chunk."""

    @property
    def done(self) -> asyncio.Future[None]: ...
    async def next_chunks(self, timeout_seconds: float) -> Sequence[tuple[int, Piece]] | None: ...
    def is_large(self, chunks: Sequence[Piece]) -> bool: ...


class Events(Protocol[Encoded]):
    """Encodes chunks as events, in the shape of one protocol.

    long: encoding the last events would block the event loop.
    """

    @property
    def long(self) -> bool: ...
    def of(self, chunks: Sequence[tuple[int, Encoded]], large: bool) -> bytes: ...
    def last(self) -> bytes: ...
    def error(self, problem: ServeError) -> bytes: ...


async def send_events(
    caller: Caller,
    reply: ReplyWriter,
    streamed: Streamed[Piece],
    events: Events[Piece],
    ping_seconds: float,
    schema: type[BaseModel] = CompletionRequest,
) -> None:
    """Send all chunks of a stream, then the last events. schema: of its request, for errors.

    An error before the first event becomes an ordinary reply, and a later error an event.
    """
    caller.watch(streamed.done)
    try:
        while (chunks := await streamed.next_chunks(ping_seconds)) is not None:
            large = streamed.is_large([chunk for _, chunk in chunks])
            await _send(reply, await offload(large, events.of, chunks, large) if chunks else PING)
        last = await offload(events.long, events.last)
        await _send(reply, last, more=False)
    except faults() as error:
        if isinstance(error, ClientDisconnected) or not reply.started:
            raise
        problem = as_serve_error(error, schema)
        await reply.send(events.error(problem))
        raise problem from error
    finally:
        caller.unwatch()
        streamed.done.cancel()  # no effect on a job that has ended


async def _send(reply: ReplyWriter, body: bytes, more: bool = True) -> None:
    if not reply.started:
        await reply.start(200, list(EVENT_HEADERS))
    await reply.send(body, more=more)


def event(value: object) -> bytes:
    """An event with a JSON value."""
    return b"data: " + json_bytes(value) + b"\n\n"


def error_event(problem: ServeError) -> bytes:
    """An error as the last event of a reply that has begun."""
    return b"data: " + error_body(problem) + b"\n\n" + DONE
