"""The endpoints of `/v1/streams`, except steps."""

import re
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel

from sruserve.server.auth import Tenant, Tenants
from sruserve.server.budget import Hold
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.errors import StreamUnknown
from sruserve.server.http.call import HttpCall
from sruserve.server.http.endpoint import HttpEndpoint
from sruserve.server.http.streams.messages import (
    CreateStream,
    Fork,
    Rewind,
    StreamDeleted,
    StreamList,
    StreamReply,
    StreamState,
)
from sruserve.server.http.v1 import TaskEndpoint
from sruserve.server.json_output import json_bytes
from sruserve.server.metrics.metrics import UNKNOWN_MODEL
from sruserve.server.offload import offload
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.repository.served import Served
from sruserve.server.repository.served_model import ServedModel, with_states
from sruserve.server.streams.record import StreamRecord
from sruserve.server.streams.service import Streams
from sruserve.server.tasks.inputs import opens_long
from sruserve.server.tasks.limits import NUMBER_BYTES, InputLimits, text_numbers
from sruserve.server.tasks.table import AnyTask, Tasks

B = TypeVar("B", bound=BaseModel)
R = TypeVar("R")

_ID = re.compile(r"[\w-]{1,64}", re.ASCII)


class Context(NamedTuple):
    """The arguments of the endpoints of `/v1/streams`.

    endpoints: compute steps, by task.
    """

    streams: Streams
    catalogue: Catalogue
    tenants: Tenants
    limits: InputLimits
    tasks: Tasks
    endpoints: Mapping[AnyTask, TaskEndpoint[Any]]


class StreamEndpoint(HttpEndpoint):
    """The base of the endpoints of `/v1/streams`."""

    schema: type[BaseModel] = BaseModel

    def __init__(self, path: str, context: Context) -> None:
        self.path = path
        self.streams, self.catalogue, tenants, self.limits, self.tasks, self.endpoints = context
        super().__init__(tenants, (*self.catalogue.streaming(), UNKNOWN_MODEL))

    async def find(self, call: HttpCall, tenant: Tenant) -> tuple[str, ServedModel]:
        """The id of the stream in the path, and its model."""
        stream_id = _stream_id(call)
        model, weights = await self.streams.model(tenant, stream_id)
        served = with_states(self.catalogue.of_weights(model, weights)).for_tenant(tenant)
        call.model = model
        return stream_id, served

    async def read(self, call: HttpCall, schema: type[B]) -> B:
        """The body; a missing body is an empty object."""
        body = await call.json_body(self.limits)
        return schema.model_validate_json(body or b"{}")

    def unsent(self, stored: bytes) -> Hold:
        """Count a stored reply until it is sent; raises `Overloaded`."""
        return self.limits.count_reply(len(stored) // NUMBER_BYTES)

    def reply(self, served: Served, record: StreamRecord) -> StreamReply:
        """The description of a stream."""
        return StreamReply(
            id=record.id,
            model=record.model,
            task=served.task,
            step=record.step,
            next_step=record.step + 1,
            checkpoints=list(record.checkpoints),
            idle_seconds=record.idle_seconds,
            created=record.created,
            expires_at=int(record.expires_at),
        )


class Create(StreamEndpoint):
    """Create a stream.

    The server keeps the state of the stream. It begins from nothing, a state or a preset.
    """

    schema = CreateStream

    async def serve(self, call: HttpCall, tenant: Tenant) -> None:
        request = await self.read(call, CreateStream)
        tasks = {served.task for served in self.catalogue.values()}
        chosen = self.catalogue.choose(request.model, *sorted(tasks), state=request.state)
        served = with_states(chosen).for_tenant(tenant)
        call.model = served.name
        served.check_admission(0)
        served.check_streams("preset" if request.preset is not None else "state")
        long, initial = opens_long(request.state), (request.state, request.preset)
        with served.in_flight:
            start = await offload(long, served.initial_state, *initial, caller=call)
            record = await self.streams.create(served, start, idle_seconds=request.idle_seconds)
        await _answer(call, self.reply(served, record), 201)


class Describe(StreamEndpoint):
    """Describe a stream.

    Reading it does not extend its life.
    """

    async def serve(self, call: HttpCall, tenant: Tenant) -> None:
        record = await self.streams.describe(tenant, _stream_id(call))
        served = self.catalogue.of_weights(record.model, record.weights)
        call.model = record.model
        await _answer(call, self.reply(served, record))


class Delete(StreamEndpoint):
    """Delete a stream.

    If a step is running, it ends first.
    """

    async def serve(self, call: HttpCall, tenant: Tenant) -> None:
        record = await _wait(call, self.streams.delete(tenant, _stream_id(call)))
        call.model = record.model if record.model in self.catalogue else UNKNOWN_MODEL
        await _answer(call, StreamDeleted(id=record.id))


class ForkStream(StreamEndpoint):
    """Fork a stream.

    Create streams in the same state, which continue with the same step number.
    """

    schema = Fork

    async def serve(self, call: HttpCall, tenant: Tenant) -> None:
        request = await self.read(call, Fork)
        stream_id, served = await self.find(call, tenant)
        copies = await _wait(call, self.streams.fork(served, stream_id, request.n))
        await _answer(call, StreamList(data=[self.reply(served, copy) for copy in copies]), 201)


class RewindStream(StreamEndpoint):
    """Rewind a stream.

    Restore the state after one of its `checkpoints`.
    """

    schema = Rewind

    async def serve(self, call: HttpCall, tenant: Tenant) -> None:
        request = await self.read(call, Rewind)
        stream_id, served = await self.find(call, tenant)
        record = await _wait(call, self.streams.rewind(served, stream_id, request.step))
        await _answer(call, self.reply(served, record))


class State(StreamEndpoint):
    """Export the state of a stream.

    Return the state after the last step as a token, which any request accepts as `state`.
    """

    async def serve(self, call: HttpCall, tenant: Tenant) -> None:
        stream_id, served = await self.find(call, tenant)
        with ExitStack() as unsent:

            def count(state: Snapshot) -> None:
                numbers = served.state_numbers(StateOutput.COPY) + text_numbers(state.word)
                numbers += text_numbers(state.held_back)
                unsent.enter_context(self.limits.count_reply(numbers))

            step, token = await _wait(call, self.streams.token(served, stream_id, count))
            await call.reply(json_bytes(StreamState(id=stream_id, step=step, state=token)))


def _stream_id(call: HttpCall) -> str:
    """The id of the stream in the path."""
    (stream_id,) = call.path_values
    if not _ID.fullmatch(stream_id):
        raise StreamUnknown("there is no such stream; create one")
    return stream_id


async def _wait(call: HttpCall, work: Coroutine[Any, Any, R]) -> R:
    """The result of work, which may wait for a long step; cancelled if the client leaves."""
    outcome = call.loop.create_task(work)
    await call.wait(outcome)
    return outcome.result()


async def _answer(call: HttpCall, reply: BaseModel, status: int = 200) -> None:
    await call.reply_as(status, json_bytes(reply))
