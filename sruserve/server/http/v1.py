"""`POST /v1/…`: the tasks over HTTP, in JSON and server-sent events."""

from collections.abc import Callable
from time import time
from typing import Any, Generic, TypeVar

from sruserve.server.auth import Tenant, Tenants
from sruserve.server.http.call import HttpCall, ReplyWriter
from sruserve.server.http.endpoint import HttpEndpoint
from sruserve.server.http.sse import DONE, error_event, event, send_events
from sruserve.server.json_output import json_bytes, long_json
from sruserve.server.metrics.metrics import UNKNOWN_MODEL
from sruserve.server.offload import offload
from sruserve.server.repository.served import Served
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.choices import free_choices
from sruserve.server.tasks.complete import CompleteTask
from sruserve.server.tasks.completion import Chunks, CompletionResponse
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.per_input import PerInputTask, Results
from sruserve.server.tasks.requests import ModelRequest
from sruserve.server.tasks.task import Task

Body = TypeVar("Body", bound=ModelRequest)


class TaskEndpoint(HttpEndpoint, Generic[Body]):
    """`POST path`: one task. Subclasses write its result."""

    def __init__(self, path: str, task: Task[Body, Any], tenants: Tenants) -> None:
        self.path, self.schema = path, task.schema
        super().__init__(tenants, (*task.models, UNKNOWN_MODEL))
        self.task = task
        self._validate: Callable[[bytes], Body] = task.schema.__pydantic_validator__.validate_json

    async def serve(self, call: HttpCall, tenant: Tenant) -> None:
        task = self.task
        body = await call.json_body(task.limits)
        request, cost = self._validate(body), len(body)
        del body
        served = task.choose(request).for_tenant(tenant)
        call.model = served.name
        served.check_admission(cost)
        with served.in_flight:
            await self.answer(call, call, request, served, cost)

    async def answer(
        self, caller: Caller, reply: ReplyWriter, request: Body, served: Any, cost: int
    ) -> None:
        """Run the task for `caller`, and write its result to `reply`."""
        raise NotImplementedError


class PerInputEndpoint(TaskEndpoint[Body]):
    """Replies with a JSON object with a result for each input."""

    def __init__(self, path: str, task: Task[Body, Any], tenants: Tenants) -> None:
        super().__init__(path, task, tenants)
        assert isinstance(task, PerInputTask)
        self._per_input, self._prefix = task, task.prefix

    async def answer(
        self, caller: Caller, reply: ReplyWriter, request: Body, served: Served, cost: int
    ) -> None:
        with await self._per_input.run(caller, request, served, cost) as results:
            fields = caller.number, request, served, results
            if results.large:
                body = await offload(True, self._body, *fields, caller=caller)
            else:
                body = self._body(*fields)
            await reply.reply(body)

    def _body(self, number: str, request: Body, served: Served, results: Results) -> bytes:
        del request
        describe = self._per_input.describe
        body = {
            "id": f"{self._prefix}-{number}",
            "model": served.name,
            "results": [describe(served, item, result) for item, result in results.results],
            "usage": {"steps": results.steps},
        }
        return (long_json if results.large else json_bytes)(body)


class CompletionEndpoint(TaskEndpoint[CompletionRequest]):
    """OpenAI's completions, as a whole or as events.

    ping_seconds: the maximum silence of an event stream.
    """

    def __init__(
        self, path: str, task: CompleteTask, tenants: Tenants, ping_seconds: float
    ) -> None:
        super().__init__(path, task, tenants)
        self._complete, self._ping_seconds = task, ping_seconds

    async def answer(
        self,
        caller: Caller,
        reply: ReplyWriter,
        request: CompletionRequest,
        served: ServedModel,
        cost: int,
    ) -> None:
        async with self._complete.run(caller, request, served, cost) as completion:
            writer = _CompletionJson(caller.number, request, completion)
            if request.stream:
                await send_events(caller, reply, completion, writer, self._ping_seconds)
                return
            choices = await completion.choices()
            large = completion.large
            await reply.reply(await offload(large, writer.whole, choices, large, caller=caller))


class _CompletionJson:
    """Encodes one completion in OpenAI's shape."""

    long = False
    error = staticmethod(error_event)

    def __init__(
        self, number: str, request: CompletionRequest, completion: CompletionResponse
    ) -> None:
        self._completion = completion
        self._header = {
            "id": f"cmpl-{number}",
            "object": "text_completion",
            "created": int(time()),
            "model": completion.model,
        }
        options = request.stream_options
        self._include_usage = options is not None and options.include_usage
        # the same beginning and end for all events of a stream
        self._head = b"data: " + json_bytes(self._header)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if self._include_usage else b"]}\n\n"

    def whole(self, choices: list[dict[str, Any]], large: bool) -> bytes:
        """The reply to a request that does not stream. The choices are freed."""
        body = {**self._header, "choices": choices, "usage": self._completion.usage}
        encoded = (long_json if large else json_bytes)(body)
        free_choices(choices)
        return encoded

    def of(self, chunks: Chunks, large: bool) -> bytes:
        """The events of the chunks, one for each."""
        encode, choice = long_json if large else json_bytes, self._completion.choice
        return b"".join(
            self._head + encode(choice(index, chunk)) + self._tail for index, chunk in chunks
        )

    def last(self) -> bytes:
        """The event with the usage, if the request includes it, then `[DONE]`."""
        if not self._include_usage:
            return DONE
        return event({**self._header, "choices": [], "usage": self._completion.usage}) + DONE
