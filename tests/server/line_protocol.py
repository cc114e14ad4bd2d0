"""A whole protocol in one file: lines over TCP, as `docs/architecture.md` tells how to add one.

classify TEXT         its label
complete N PROMPT     N tokens as they come, in a line for each chunk, then "."
create MODEL          the id of a new stream
step ID NUMBER TEXT   the label of what the stream has read so far; the same again if repeated
ROUTE TEXT            the result of any other task that has this route under `/v1`, as JSON
"""

import asyncio
from collections.abc import Callable
from functools import partial
from json import dumps
from typing import Any

from pydantic import BaseModel

from sruserve.server.app import Application
from sruserve.server.auth import Tenant
from sruserve.server.errors import InvalidRequest, ServeError
from sruserve.server.metrics.metrics import UNKNOWN_MODEL
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.streams.step import digest_of
from sruserve.server.streams.step_view import StreamView
from sruserve.server.tasks.caller import Caller, StepCaller
from sruserve.server.tasks.classify import ClassifyTask
from sruserve.server.tasks.complete import CompleteTask
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.endpoint import Endpoint
from sruserve.server.tasks.requests import ClassifyRequest


class LineCall(Caller):
    """One line; `serve_lines` sees its client leave."""

    def __init__(self, line: bytes, write: Callable[[bytes], None]) -> None:
        super().__init__()
        self.line, self._write = line, write

    def say(self, text: str) -> None:
        """Send a line."""
        self._write(text.encode() + b"\n")


class LineEndpoint(Endpoint[LineCall]):
    """Answers lines."""

    path, schema = "lines", BaseModel

    def __init__(self, application: Application) -> None:
        super().__init__(application.lifecycle.tenants, (UNKNOWN_MODEL,))
        self._tasks, self._streams = application.tasks, application.streams
        self._catalogue, self._limits = application.lifecycle.catalogue, application.limits

    async def serve(self, call: LineCall, tenant: Tenant) -> None:
        verb, _, rest = call.line.decode().partition(" ")
        match verb:
            case "classify":
                served = self._tasks[ClassifyTask].choose(ClassifyRequest(input=rest))
                call.model = served.name
                with served.in_flight:
                    call.say(await self._label(call, served.for_tenant(tenant), rest))
            case "complete":
                await self._complete(call, tenant, *rest.split(" ", 1))
            case "create":
                served = self._catalogue.with_states(rest).for_tenant(tenant)
                call.say((await self._streams.create(served, None)).id)
            case "step":
                await self._step(call, tenant, *rest.split(" ", 2))
            case _:
                await self._other(call, tenant, verb, rest)

    async def refuse(self, call: LineCall, problem: ServeError) -> None:
        call.say(f"! {problem.code}")

    async def _label(self, caller: Caller, served: ServedModel, text: str) -> str:
        task, request = self._tasks[ClassifyTask], ClassifyRequest(input=text, more=True)
        with await task.run(caller, request, served, len(text)) as results:
            ((item, result),) = results.results
            return str(task.describe(served, item, result)["label"])

    async def _other(self, call: LineCall, tenant: Tenant, verb: str, text: str) -> None:
        task: Any = next((task for task in self._tasks if task.route == verb), None)
        if task is None:
            raise InvalidRequest("there is no such verb")
        request = task.schema(input=text)
        served = task.choose(request).for_tenant(tenant)
        call.model = served.name
        with served.in_flight, await task.run(call, request, served, len(text)) as results:
            call.say(dumps([task.describe(served, *result) for result in results.results]))

    async def _complete(self, call: LineCall, tenant: Tenant, count: str, prompt: str) -> None:
        task = self._tasks[CompleteTask]
        request = CompletionRequest(prompt=prompt, max_tokens=int(count), seed=7, stream=True)
        served = task.choose(request).for_tenant(tenant)
        async with task.run(call, request, served, len(prompt)) as completion:
            call.watch(completion.done)
            while (chunks := await completion.next_chunks(1.0)) is not None:
                for index, chunk in chunks:
                    call.say(repr(completion.choice(index, chunk)["text"]))
        call.say(".")

    async def _step(
        self, call: LineCall, tenant: Tenant, stream_id: str, number: str, text: str
    ) -> None:
        record = await self._streams.describe(tenant, stream_id)
        served, caller = (
            self._catalogue.with_states(record.model).for_tenant(tenant),
            StepCaller(call),
        )

        async def work(view: StreamView) -> bytes:
            return (await self._label(caller, view, text)).encode()

        digest, counted = await digest_of(call.line, call), partial(caller.counted, self._limits, 0)
        step = self._streams.step(served, stream_id, int(number), digest, work, counted=counted)
        with caller:
            outcome = call.loop.create_task(step)
            await call.wait(outcome)
            call.say(outcome.result().decode())


async def serve_lines(
    endpoint: LineEndpoint, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer the lines of one connection, in their order, until its client leaves."""
    lines: asyncio.Queue[bytes] = asyncio.Queue(16)
    answering: LineCall | None = None

    async def read() -> None:
        while line := await reader.readline():
            await lines.put(line.rstrip(b"\n"))
        if answering is not None:
            answering.leave()
        await lines.put(b"")

    reading = asyncio.ensure_future(read())
    try:
        while line := await lines.get():
            answering = LineCall(line, writer.write)
            await endpoint(answering)
    finally:
        reading.cancel()
        writer.close()
