"""`POST /v1/streams/{id}/steps`: run the task of the stream's model, exactly once per step."""

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

from pydantic import ValidationError, create_model
from pydantic_core import from_json

from sruserve.server.auth import Tenant
from sruserve.server.errors import faults
from sruserve.server.http.call import HttpCall
from sruserve.server.http.sse import EVENT_HEADERS, error_event
from sruserve.server.http.streams.endpoints import Context, StreamEndpoint
from sruserve.server.http.streams.messages import (
    ClassifyStep,
    CompleteStep,
    EncodeStep,
    RegressStep,
    ScoreStep,
    Step,
    TagStep,
)
from sruserve.server.http.streams.stored_reply import StoredReply
from sruserve.server.http.v1 import TaskEndpoint
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.streams.step import digest_of
from sruserve.server.streams.step_view import StreamView
from sruserve.server.tasks.caller import ClientDisconnected, StepCaller
from sruserve.server.tasks.classify import ClassifyTask
from sruserve.server.tasks.complete import CompleteTask
from sruserve.server.tasks.encode import EncodeTask
from sruserve.server.tasks.error_mapping import as_serve_error
from sruserve.server.tasks.regress import RegressTask
from sruserve.server.tasks.score import ScoreTask
from sruserve.server.tasks.table import AnyTask
from sruserve.server.tasks.tag import TagTask

_STEPS: Mapping[type[AnyTask], type[Step]] = {
    ClassifyTask: ClassifyStep,
    TagTask: TagStep,
    RegressTask: RegressStep,
    EncodeTask: EncodeStep,
    ScoreTask: ScoreStep,
    CompleteTask: CompleteStep,
}


class Steps(StreamEndpoint):
    """Run a step of a stream.

    The reply is that of the route of the model's task. Each step is computed exactly once.

    If the last step is sent again, byte for byte, the reply is the stored one.
    """

    schema = Step

    def __init__(self, path: str, context: Context) -> None:
        super().__init__(path, context)
        self._schemas = {task: _schema_of(type(task)) for task in self.tasks if task.streams}

    async def serve(self, call: HttpCall, tenant: Tenant) -> None:
        body = await call.json_body(self.limits)
        stream_id, served = await self.find(call, tenant)
        endpoint, request = self._read(served, body)
        digest, cost = await digest_of(body, call), len(body)
        del body  # the step may outlive its client
        served.check_admission(cost)
        caller, reply = StepCaller(call), StoredReply(call)

        async def work(view: StreamView) -> bytes:
            if isinstance(request, CompleteStep):
                view.set_seed(request)
            await endpoint.answer(caller, reply, request, view, cost)
            return reply.body if _streamed(request) else _of_stream(reply.body, stream_id, request)

        counted = partial(caller.counted, self.limits, cost)
        step = self.streams.step(served, stream_id, request.step, digest, work, counted=counted)
        with caller:
            outcome = call.loop.create_task(step)
            await self._answer(call, caller, reply, outcome, request)

    async def _answer(
        self,
        call: HttpCall,
        caller: StepCaller,
        stored: StoredReply,
        outcome: asyncio.Task[bytes],
        request: Step,
    ) -> None:
        """Send the part of a step's reply that the client does not have yet."""
        try:
            await call.wait(outcome)
        except ClientDisconnected:
            stored.client_connected = False
            raise
        except faults() as error:
            if not call.started:
                raise
            problem = as_serve_error(error, type(request))
            await call.send(error_event(problem))
            raise problem from error
        if call.started:
            await call.send(stored.last)
            return
        reply = outcome.result()
        with nullcontext() if caller.counts else self.unsent(reply):
            if _streamed(request):
                await call.start(200, list(EVENT_HEADERS))
                await call.send(reply)
            else:
                await call.reply(reply)

    def _read(self, served: ServedModel, body: bytes) -> tuple[TaskEndpoint[Any], Step]:
        """The endpoint of a step, and its request."""
        task = self.tasks.of_model(served.model.config.task, partial(_has_field, body))
        schema = self._schemas[task]
        try:
            request = schema.model_validate_json(body)
        except ValidationError as error:
            raise as_serve_error(error, schema) from None
        return self.endpoints[task], request


def _schema_of(task: type[AnyTask]) -> type[Step]:
    """The fields of a step that runs a task."""
    if task in _STEPS:
        return _STEPS[task]
    name = task.schema.__name__.removesuffix("Request")
    bases: tuple[Any, ...] = (Step, task.schema)
    return cast("type[Step]", create_model(f"{name}Step", __base__=bases))


def _has_field(body: bytes, name: str) -> bool:
    if b'"%b"' % name.encode() not in body and b"\\u" not in body:
        return False  # parsing a long body twice would block the event loop
    try:
        fields = from_json(body)
    except ValueError:
        return False
    return isinstance(fields, dict) and name in fields


def _streamed(request: Step) -> bool:
    return isinstance(request, CompleteStep) and bool(request.stream)


def _of_stream(reply: bytes, stream_id: str, request: Step) -> bytes:
    """A route's reply, a JSON object, with its stream and step added."""
    return reply[:-1] + b',"stream":"%b","step":%d}' % (stream_id.encode(), request.step)
