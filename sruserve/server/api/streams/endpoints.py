"""All that can be asked of a stream, but its steps."""

import re
from collections.abc import Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel

from sruserve.server.api.call import JSON_TYPE, Call, json_bytes
from sruserve.server.api.catalogue import Catalogue
from sruserve.server.api.endpoint import Endpoint
from sruserve.server.api.inputs import opens_long
from sruserve.server.api.limits import NUMBER_BYTES, InputLimits
from sruserve.server.api.routes import Routes
from sruserve.server.api.served import Served
from sruserve.server.api.streams.messages import (
    CreateStream,
    Fork,
    Rewind,
    StreamDeleted,
    StreamList,
    StreamReply,
    StreamState,
)
from sruserve.server.budget import Hold
from sruserve.server.errors import StreamUnknown
from sruserve.server.metrics import UNKNOWN_MODEL
from sruserve.server.offload import off_loop
from sruserve.server.streams.held import Held
from sruserve.server.streams.service import Streams
from sruserve.server.tenants import Tenant, Tenants

B = TypeVar("B", bound=BaseModel)
R = TypeVar("R")

_ID = re.compile(r"[\w-]{1,64}", re.ASCII)
_ID_PART = 3  # of "/v1/streams/ID/…", split


class StreamEndpoint(Endpoint):
    """What the routes of `/v1/streams` share."""

    def __init__(
        self,
        streams: Streams,
        catalogue: Catalogue,
        tenants: Tenants,
        limits: InputLimits,
        routes: Routes,
    ) -> None:
        super().__init__(tenants, (*catalogue.streaming(), UNKNOWN_MODEL))
        self.streams, self.catalogue, self.limits = streams, catalogue, limits
        self.routes = routes

    async def find(self, call: Call, tenant: Tenant) -> tuple[Held, Served]:
        """The stream that the path names, and its model."""
        held = await self.streams.describe(tenant, _stream_id(call))
        served = self.catalogue[held.model].of(tenant)
        call.model = held.model
        return held, served

    async def read(self, call: Call, schema: type[B]) -> B:
        """The body; none at all is an empty one."""
        body = await call.json_body(self.limits)
        return schema.model_validate_json(body or b"{}")

    def unsent(self, stored: bytes) -> Hold:
        """Count a reply from the store until its client has it; raises `Overloaded`."""
        return self.limits.count_reply(len(stored) // NUMBER_BYTES)

    def reply(self, served: Served, held: Held) -> StreamReply:
        """A stream as clients see it."""
        return StreamReply(
            id=held.id,
            model=held.model,
            task=served.model.config.task,
            step=held.step,
            next_step=held.step + 1,
            checkpoints=list(held.checkpoints),
            idle_seconds=held.idle_seconds,
            created=held.created,
            expires_at=int(held.expires_at),
        )


class Create(StreamEndpoint):
    """`POST /v1/streams`."""

    path, schema = "/v1/streams", CreateStream

    async def serve(self, call: Call, tenant: Tenant) -> None:
        request = await self.read(call, CreateStream)
        tasks = {served.model.config.task for served in self.catalogue.values()}
        served = self.catalogue.choose(request.model, *sorted(tasks)).of(tenant)
        call.model = served.name
        served.check_admission(0)
        begun_by = "preset" if request.preset is not None else "state"
        served.check_streams(begun_by)
        long, given = opens_long(request.state), (request.state, request.preset)
        with served.holders:
            start = await off_loop(long, served.begin, *given, caller=call)
            held = await self.streams.create(served, start, idle_seconds=request.idle_seconds)
        await _answer(call, self.reply(served, held), 201)


class Describe(StreamEndpoint):
    """`GET /v1/streams/{id}`."""

    path, schema = "/v1/streams/{id}", BaseModel

    async def serve(self, call: Call, tenant: Tenant) -> None:
        held, served = await self.find(call, tenant)
        await _answer(call, self.reply(served, held))


class Delete(StreamEndpoint):
    """`DELETE /v1/streams/{id}`."""

    path, schema = "/v1/streams/{id}", BaseModel

    async def serve(self, call: Call, tenant: Tenant) -> None:
        held = await _wait(call, self.streams.delete(tenant, _stream_id(call)))
        call.model = held.model if held.model in self.catalogue else UNKNOWN_MODEL
        await _answer(call, StreamDeleted(id=held.id))


class ForkStream(StreamEndpoint):
    """`POST /v1/streams/{id}/fork`."""

    path, schema = "/v1/streams/{id}/fork", Fork

    async def serve(self, call: Call, tenant: Tenant) -> None:
        request = await self.read(call, Fork)
        held, served = await self.find(call, tenant)
        copies = await _wait(call, self.streams.fork(served, held.id, request.n))
        await _answer(call, StreamList(data=[self.reply(served, each) for each in copies]), 201)


class RewindStream(StreamEndpoint):
    """`POST /v1/streams/{id}/rewind`."""

    path, schema = "/v1/streams/{id}/rewind", Rewind

    async def serve(self, call: Call, tenant: Tenant) -> None:
        request = await self.read(call, Rewind)
        held, served = await self.find(call, tenant)
        back = await _wait(call, self.streams.rewind(served, held.id, request.step))
        await _answer(call, self.reply(served, back))


class State(StreamEndpoint):
    """`GET /v1/streams/{id}/state`: the stream as a token, which any replica continues."""

    path, schema = "/v1/streams/{id}/state", BaseModel

    async def serve(self, call: Call, tenant: Tenant) -> None:
        held, served = await self.find(call, tenant)
        step, token = await _wait(call, self.streams.token(served, held.id))
        body = json_bytes(StreamState(id=held.id, step=step, state=token))
        with self.unsent(body):
            await call.reply(body)


def _stream_id(call: Call) -> str:
    """The stream that the path names."""
    stream_id = call.path.split("/")[_ID_PART]
    if not _ID.fullmatch(stream_id):
        raise StreamUnknown("there is no such stream; create one")
    return stream_id


async def _wait(call: Call, work: Coroutine[Any, Any, R]) -> R:
    """The result of work, which ends where its client leaves: it may wait for a long step."""
    outcome = call.loop.create_task(work)
    await call.wait(outcome)
    return outcome.result()


async def _answer(call: Call, reply: BaseModel, status: int = 200) -> None:
    body = json_bytes(reply)
    await call.start(status, [JSON_TYPE, (b"content-length", b"%d" % len(body))])
    await call.send(body)
