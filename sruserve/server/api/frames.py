"""What the frames of a socket ask for, and how each is answered."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import from_json

from sruserve.server.api.call import Call, ClientGone, Message, Receive, Send, json_bytes
from sruserve.server.api.catalogue import Catalogue
from sruserve.server.api.completion_request import CompletionRequest
from sruserve.server.api.endpoint import Endpoint
from sruserve.server.api.long_json import long_json
from sruserve.server.api.parts import check_parts
from sruserve.server.api.problems import as_serve_error
from sruserve.server.api.requests import Request
from sruserve.server.api.routes import Routes
from sruserve.server.api.sealed_states import SealedStates
from sruserve.server.api.served import Served
from sruserve.server.api.texts import Results, TextRoute
from sruserve.server.engine.jobs import Keep, Snapshot
from sruserve.server.errors import InvalidRequest, MalformedBody, ServeError, StateWrongModel
from sruserve.server.metrics import UNKNOWN_MODEL
from sruserve.server.offload import LONG_BYTES, off_loop
from sruserve.server.streams.view import StreamView
from sruserve.server.tenants import Tenant, Tenants

Body = TypeVar("Body", bound=Request)

PATH = "/v1/stream"
_BEGINNING = ("model", "state", "preset")
_TASKS = ("classify", "tag", "encode", "generate")
_MOST_ID = 100
_SOCKET_BYTES = 4096  # of what a socket takes beside its stream's state


@dataclass(slots=True)
class Stream:
    """What a socket goes on with. It holds no model, which may be unloaded while it is idle.

    states: of its model and tenant, as tokens.
    state: after the last frame that was answered; None: nothing was read yet.
    """

    states: SealedStates
    state: Snapshot | None
    _held_bytes: int = 0

    def token(self) -> str | None:
        """The state as a token; raises `StateTooLarge`."""
        self.states.check_fit("state")
        return None if self.state is None else self.states.seal(self.state)

    def go_on(self, state: Snapshot | None) -> None:
        """Go on from this state, which counts as the tenant's from now on.

        Raises `StateQuotaExceeded`, and changes nothing.
        """
        nbytes = self.states.nbytes if state is None else state.host_bytes
        nbytes = max(self.states.nbytes, nbytes) + _SOCKET_BYTES
        self.states.tenant.hold(nbytes, instead_of=self._held_bytes)
        self.states.tenant.release(self._held_bytes)
        self.state, self._held_bytes = state, nbytes

    def release(self) -> None:
        """The state is kept no more."""
        self.states.tenant.release(self._held_bytes)
        self._held_bytes = 0


class Frame(Call):
    """One frame of a client; its replies repeat its `id`.

    stream: what the socket's frames have begun, if anything.
    last: the client is done with the socket.
    cost: bytes of the frame.
    """

    __slots__ = ("_data", "_id", "_running", "cost", "last", "stream")

    def __init__(
        self, scope: Message, receive: Receive, send: Send, data: bytes, stream: Stream | None
    ) -> None:
        super().__init__(scope, receive, send)
        self.stream, self.last = stream, False
        self._data, self.cost = data, len(data)
        self._id: dict[str, Any] = {}
        self._running: asyncio.Future[None] | None = None

    def fields(self) -> dict[str, Any]:
        """What the frame says, but for its id."""
        try:
            check_parts(self._data)
            given = from_json(self._data)
        except ValueError as error:
            raise MalformedBody(f"the frame is not valid JSON: {error}") from None
        if not isinstance(given, dict):
            raise InvalidRequest("a frame must be a JSON object")
        known = given.pop("id", None)
        if known is not None:
            if type(known) not in (str, int) or len(str(known)) > _MOST_ID:
                raise InvalidRequest(
                    f"'id' must be a text or an integer of at most {_MOST_ID} characters",
                    param="id",
                )
            self._id = {"id": known}
        return given

    def let_go(self) -> None:
        """Its bytes have been read, or nobody will read them."""
        data, self._data = self._data, b""
        connection = self._scope.get("connection")
        if data and connection is not None:
            connection.has_read(len(data))

    async def tell(self, told: dict[str, Any], *, much: bool = False) -> None:
        """Send a reply; `much`: making it would hold up the event loop."""
        text = await off_loop(much, _text, {**self._id, **told}, much)
        try:
            await self._send({"type": "websocket.send", "text": text})
        except OSError:
            raise ClientGone from None

    async def refuse(self, error: ServeError) -> None:
        told: dict[str, Any] = {"error": error.told}
        if error.retry_after_seconds is not None:
            told["retry_after"] = error.retry_after_seconds
        await self.tell(told)

    def watch(self, done: asyncio.Future[None]) -> None:
        self._running = done
        if self.gone:
            done.cancel()

    def unwatch(self) -> None:
        self._running = None

    def leave(self) -> None:
        """The client has left: nobody waits for what is computed."""
        self._gone = True
        if self._running is not None:
            self._running.cancel()


class Frames(Endpoint):
    """Answers each frame as the route of its model's task would, and keeps the state."""

    path, schema = PATH, Request

    def __init__(self, catalogue: Catalogue, tenants: Tenants, routes: Routes) -> None:
        super().__init__(tenants, (*catalogue.streaming(), UNKNOWN_MODEL))
        self._catalogue = catalogue
        self._complete = routes.complete
        self._chunks: dict[str, TextRoute[Any]] = {
            route.task: route
            for route in (routes.classify, routes.tag, routes.encode, routes.score)
        }

    async def serve(self, call: Call, tenant: Tenant) -> None:
        assert isinstance(call, Frame)
        long, cost = call.cost > LONG_BYTES, call.cost
        try:
            fields = await off_loop(long, call.fields, cost=cost, caller=call)
        finally:
            call.let_go()
        call.count_body(self._complete.limits, cost)
        beginning = {name: fields.pop(name) for name in _BEGINNING if name in fields}
        if call.stream is not None:
            if beginning:
                field = next(iter(beginning))
                raise InvalidRequest(
                    f"the stream has begun: leave out '{field}', or open another socket",
                    param=field,
                )
            await self._answer(call, call.stream, fields)
            return
        stream, task = self._begin(beginning, tenant)
        call.model = stream.states.name
        stream.go_on(stream.state)
        try:
            if fields:
                await self._answer(call, stream, fields)
            else:
                await call.tell({"model": stream.states.name, "task": task})
        except BaseException:
            stream.release()
            raise
        call.stream = stream

    def _begin(self, beginning: dict[str, Any], tenant: Tenant) -> tuple[Stream, str]:
        """A stream, and the task of its model."""
        request = _validated(Request, beginning)
        served = self._catalogue.choose(request.model, *_TASKS).of(tenant)
        served.check_streams("model")
        (state,) = served.starts(request, 1)
        return Stream(served.states, state), served.model.config.task

    async def _answer(self, frame: Frame, stream: Stream, fields: dict[str, Any]) -> None:
        frame.model = stream.states.name
        if "op" in fields:
            await self._operate(frame, stream, fields)
            return
        if not fields:
            raise InvalidRequest("the frame asks for nothing: send an input, a prompt or an 'op'")
        served = self._now(stream)
        served.check_admission(frame.cost)
        with served.holders:
            await self._compute(frame, served, stream, fields)

    def _now(self, stream: Stream) -> Served:
        """The model that a stream was begun with, as it is served now; raises if it is not."""
        name = stream.states.name
        served = self._catalogue[name].of(stream.states.tenant)
        if not served.states.match(stream.states):
            raise StateWrongModel(
                f"{name} has other weights now: begin another stream on another socket"
            )
        return served

    async def _compute(
        self, frame: Frame, served: Served, stream: Stream, fields: dict[str, Any]
    ) -> None:
        if served.model.config.task == self._complete.task and "input" not in fields:
            await self._generate(frame, served, stream, fields)
            return
        route = self._chunks[served.model.config.task]
        request = _validated(route.schema, {"more": True, **fields})
        view = StreamView(served, stream.state, Keep.SNAPSHOT, tokens=request.return_state)
        async with route.computed(frame, request, view, frame.cost) as results:
            told = await off_loop(results.much, _told, route, view, results)
            stream.go_on(view.take_end())
            await frame.tell(told, much=results.much)

    async def _operate(self, frame: Frame, stream: Stream, fields: dict[str, Any]) -> None:
        op = fields.pop("op")
        if op not in ("state", "close"):
            raise InvalidRequest("'op' must be 'state' or 'close'", param="op")
        if fields:
            field = next(iter(fields))[:_MOST_ID]
            raise InvalidRequest(f"an 'op' comes alone: leave out '{field}'", param=field)
        await frame.tell({"state": stream.token()})
        frame.last = op == "close"

    async def _generate(
        self, frame: Frame, served: Served, stream: Stream, fields: dict[str, Any]
    ) -> None:
        """Tell a completion as it comes."""
        if "stream" in fields:
            raise InvalidRequest("a socket always streams: leave out 'stream'", param="stream")
        request = _validated(CompletionRequest, {**fields, "stream": True})
        fields.clear()  # the request has them, until they are read
        if (request.n or 1) != 1:
            raise InvalidRequest("a stream goes on in one way: leave out 'n'", param="n")
        wanted = request.state_wanted_by is not None
        view = StreamView(served, stream.state, Keep.SNAPSHOT, tokens=wanted)
        parts = self._complete.parts(frame, request, view, frame.cost)
        async with aclosing(parts):
            async for part in parts:
                await frame.tell(part, much=bool(request.echo))
        stream.go_on(view.take_end())


def _validated(schema: type[Body], fields: dict[str, Any]) -> Body:
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise as_serve_error(error, schema) from None


def _told(route: TextRoute[Any], view: StreamView, results: Results) -> dict[str, Any]:
    """The one result of a frame."""
    ((item, result),) = results.told
    return {**route.result(view, item, result), "usage": {"steps": results.steps}}


def _text(told: dict[str, Any], much: bool) -> str:
    return (long_json if much else json_bytes)(told).decode()
