"""`POST /v1/streams/{id}/steps`: what the model's own route answers, exactly once."""

from asyncio import Task
from contextlib import nullcontext
from functools import partial
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from sruserve.server.api.call import Call, ClientGone
from sruserve.server.api.events import DONE, EVENT_HEADERS
from sruserve.server.api.problems import as_serve_error
from sruserve.server.api.route import Route
from sruserve.server.api.served import Served
from sruserve.server.api.streams.endpoints import StreamEndpoint
from sruserve.server.api.streams.messages import (
    ClassifyStep,
    CompleteStep,
    EncodeStep,
    ScoreStep,
    Step,
    TagStep,
)
from sruserve.server.api.streams.recorder import Recorder
from sruserve.server.errors import faults
from sruserve.server.streams.held import Held
from sruserve.server.streams.service import digest_of
from sruserve.server.streams.view import StreamView
from sruserve.server.tenants import Tenant


class Steps(StreamEndpoint):
    """Runs the route of the model's task on a view of the model that continues the stream."""

    path, schema = "/v1/streams/{id}/steps", Step

    async def serve(self, call: Call, tenant: Tenant) -> None:
        body = await call.json_body(self.limits)
        held, served = await self.find(call, tenant)
        route, request = self._read(served, body)
        digest, cost = await digest_of(body), len(body)
        del body  # the step may outlive its client
        served.check_admission(cost)
        recorder = Recorder(call)

        async def work(view: StreamView) -> bytes:
            if isinstance(request, CompleteStep):
                view.set_seed(request)
            await route.answer(recorder, request, view, cost)
            return recorder.kept if _streamed(request) else _of_stream(recorder.kept, held, request)

        counted = partial(recorder.counted, self.limits, cost)
        step = self.streams.step(served, held.id, request.step, digest, work, counted=counted)
        with recorder:
            outcome = call.loop.create_task(step)
            await self._answer(call, recorder, outcome, request)

    async def _answer(
        self, call: Call, recorder: Recorder, outcome: Task[bytes], request: Step
    ) -> None:
        """Answer with the outcome of a step, as far as the client has not got it."""
        try:
            await call.wait(outcome)
        except ClientGone:
            recorder.heard = False
            raise
        except faults() as error:
            if not call.started:
                raise
            problem = as_serve_error(error, type(request))
            await call.send(b"data: " + problem.body() + b"\n\n" + DONE)
            raise problem from error
        if call.started:
            await call.send(recorder.last)
            return
        reply = outcome.result()
        with nullcontext() if recorder.started else self.unsent(reply):  # else it counts already
            if _streamed(request):
                await call.start(200, list(EVENT_HEADERS))
                await call.send(reply)
            else:
                await call.reply(reply)

    def _read(self, served: Served, body: bytes) -> tuple[Route[Any], Step]:
        """The route that answers a step, and what it is asked."""
        routes, task = self.routes, served.model.config.task
        scores = task == "generate" and _has_input(body)
        answers: dict[str, tuple[Route[Any], type[Step]]] = {
            "classify": (routes.classify, ClassifyStep),
            "tag": (routes.tag, TagStep),
            "encode": (routes.encode, EncodeStep),
            "generate": (routes.score, ScoreStep) if scores else (routes.complete, CompleteStep),
        }
        route, schema = answers[task]
        try:
            request = schema.model_validate_json(body)
        except ValidationError as error:
            raise as_serve_error(error, schema) from None
        request = request.model_copy(update={"model": served.name})
        route.choose(request)
        return route, request


def _has_input(body: bytes) -> bool:
    try:
        given = from_json(body)
    except ValueError:
        return False
    return isinstance(given, dict) and "input" in given


def _streamed(request: Step) -> bool:
    return isinstance(request, CompleteStep) and bool(request.stream)


def _of_stream(reply: bytes, held: Held, request: Step) -> bytes:
    """A route's reply, a JSON object, with the stream and the step that it is of."""
    return reply[:-1] + b',"stream":"%b","step":%d}' % (held.id.encode(), request.step)
