"""Answer the frames of a WebSocket: each is the next step of its stream."""

from typing import Any, TypeVar

from pydantic import ValidationError

from sruserve.server.auth import Tenant, Tenants
from sruserve.server.engine.snapshot import StateOutput
from sruserve.server.errors import (
    InvalidRequest,
    ServeError,
    StateWrongModel,
)
from sruserve.server.metrics.metrics import UNKNOWN_MODEL
from sruserve.server.offload import LONG_BYTES, offload
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.repository.served_model import ServedModel, with_states
from sruserve.server.streams.step_view import StreamView
from sruserve.server.tasks.complete import CompleteTask
from sruserve.server.tasks.completion import Chunks, CompletionResponse
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.endpoint import Endpoint
from sruserve.server.tasks.error_mapping import as_serve_error
from sruserve.server.tasks.per_input import PerInputTask, Results
from sruserve.server.tasks.requests import ModelRequest, Request
from sruserve.server.tasks.table import Tasks
from sruserve.server.websocket.request import MAX_ID, WebSocketRequest
from sruserve.server.websocket.session import Session

Body = TypeVar("Body", bound=ModelRequest)

PATH = "/v1/stream"
_BEGINNING = ("model", "state", "preset")
_WAIT_SECONDS = 15.0  # the longest of the waits for chunks


class SessionEndpoint(Endpoint[WebSocketRequest]):
    """Answers each frame like the route of its model's task, and keeps the state."""

    path, schema = PATH, Request

    def __init__(self, catalogue: Catalogue, tenants: Tenants, tasks: Tasks) -> None:
        super().__init__(tenants, (*catalogue.streaming(), UNKNOWN_MODEL))
        self._catalogue, self._tasks = catalogue, tasks
        self._complete_task = tasks[CompleteTask]
        self._task_names = tuple(dict.fromkeys(task.name for task in tasks if task.streams))

    async def serve(self, call: WebSocketRequest, tenant: Tenant) -> None:
        long, cost = call.cost > LONG_BYTES, call.cost
        try:
            await call.turn_to_parse()
            fields = await offload(long, call.fields, cost=cost, caller=call)
        finally:
            call.drop_data()
        call.count_body(self._tasks.limits, cost)
        beginning = {name: fields.pop(name) for name in _BEGINNING if name in fields}
        if call.stream is not None:
            if beginning:
                field = next(iter(beginning))
                raise InvalidRequest(
                    f"the stream has already begun: leave out '{field}', or open another socket",
                    param=field,
                )
            await self._answer(call, call.stream, fields)
            return
        stream, task = self._begin(beginning, tenant)
        call.model = stream.states.name
        try:
            stream.continue_from(stream.state)
            if fields:
                await self._answer(call, stream, fields)
            else:
                await call.send({"model": stream.states.name, "task": task})
        except BaseException:
            stream.release()
            raise
        call.stream = stream

    def _begin(self, beginning: dict[str, Any], tenant: Tenant) -> tuple[Session, str]:
        """Begin a session; returns it with the task of its model."""
        request = _validated(Request, beginning)
        chosen = self._catalogue.choose(request.model, *self._task_names, state=request.state)
        served = with_states(chosen).for_tenant(tenant)
        served.check_streams("model")
        (state,) = served.initial_states(request, 1)
        return Session(served.states, state), served.task

    async def refuse(self, call: WebSocketRequest, problem: ServeError) -> None:
        await call.refuse(problem)

    async def _answer(
        self, frame: WebSocketRequest, stream: Session, fields: dict[str, Any]
    ) -> None:
        frame.model = stream.states.name
        if "op" in fields:
            await self._operate(frame, stream, fields)
            return
        if not fields:
            raise InvalidRequest("the frame has no input: send an input, a prompt or an 'op'")
        served = self._served_model(stream)
        served.check_admission(frame.cost)
        with served.in_flight:
            await self._compute(frame, served, stream, fields)

    def _served_model(self, stream: Session) -> ServedModel:
        """The model of a session as it is served now; raises if it is not served."""
        name = stream.states.name
        served = with_states(self._catalogue.of_weights(name, stream.states.weights))
        served = served.for_tenant(stream.states.tenant)
        if not served.states.match(stream.states):
            raise StateWrongModel(
                f"the version of {name} that this stream belongs to is no longer served: open "
                "another socket for a new stream"
            )
        return served

    async def _compute(
        self, frame: WebSocketRequest, served: ServedModel, stream: Session, fields: dict[str, Any]
    ) -> None:
        task: Any = self._tasks.of_model(served.task, fields.__contains__)
        if task is self._complete_task:
            await self._complete(frame, served, stream, fields)
            return
        request: Any = _validated(task.schema, {"more": True, **fields})
        fields.clear()  # the request has them now
        view = StreamView(served, stream.state, StateOutput.COPY, tokens=request.return_state)
        with await task.run(frame, request, view, frame.cost) as results:
            reply = await offload(results.large, _describe, task, view, results)
            stream.continue_from(view.end.of(view))
            await frame.send(reply, large=results.large)

    async def _operate(
        self, frame: WebSocketRequest, stream: Session, fields: dict[str, Any]
    ) -> None:
        op = fields.pop("op")
        if op not in ("state", "close"):
            raise InvalidRequest("'op' must be 'state' or 'close'", param="op")
        if fields:
            field = next(iter(fields))[:MAX_ID]
            raise InvalidRequest(
                f"a frame with 'op' may have no other field than 'id': leave out '{field}'",
                param=field,
            )
        with self._tasks.limits.count_reply(stream.token_numbers):
            large = stream.states.nbytes > LONG_BYTES
            token = await offload(large, stream.token, caller=frame)
            await frame.send({"state": token}, large=large)
        frame.last = op == "close"

    async def _complete(
        self, frame: WebSocketRequest, served: ServedModel, stream: Session, fields: dict[str, Any]
    ) -> None:
        """Stream a completion; its last chunk has the usage."""
        if "stream" in fields:
            raise InvalidRequest("a socket always streams: leave out 'stream'", param="stream")
        request = _validated(CompletionRequest, {**fields, "stream": True})
        fields.clear()  # the request has them now
        if (request.n or 1) != 1:
            raise InvalidRequest("a socket has one completion at a time: leave out 'n'", param="n")
        with_tokens = request.state_wanted_by is not None
        view = StreamView(served, stream.state, StateOutput.COPY, tokens=with_tokens)
        async with self._complete_task.run(frame, request, view, frame.cost) as completion:
            frame.watch(completion.done)
            try:
                while (chunks := await completion.next_chunks(_WAIT_SECONDS)) is not None:
                    large = completion.is_large([chunk for _, chunk in chunks])
                    for part in await offload(large, _parts, completion, chunks):
                        await frame.send(part, large=bool(request.echo))
            finally:
                frame.unwatch()
        stream.continue_from(view.end.of(view))


def _validated(schema: type[Body], fields: dict[str, Any]) -> Body:
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise as_serve_error(error, schema) from None


def _describe(task: PerInputTask, view: StreamView, results: Results) -> dict[str, Any]:
    """The result of a frame."""
    ((item, result),) = results.results
    return {**task.describe(view, item, result), "usage": {"steps": results.steps}}


def _parts(completion: CompletionResponse, chunks: Chunks) -> list[dict[str, Any]]:
    """A reply for each chunk."""
    parts: list[dict[str, Any]] = []
    for index, chunk in chunks:
        parts.append({"choices": [completion.choice(index, chunk)]})
        if chunk.finish_reason is not None:
            parts[-1]["usage"] = completion.usage
    return parts
