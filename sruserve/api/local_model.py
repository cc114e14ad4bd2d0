"""One model in this process: validated requests in, results of the server's tasks out."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from time import monotonic
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from sruserve.api.caller import LocalCaller
from sruserve.api.event_loop import EventLoop, event_loop
from sruserve.model.errors import ModelError
from sruserve.server.errors import Draining, ModelClosed, ModelLoadFailed
from sruserve.server.fair_semaphore import FairSemaphore
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.offload import offload
from sruserve.server.process_limits import process_limit
from sruserve.server.repository.served_model import InFlight, ServedModel
from sruserve.server.settings import Settings, SettingsError
from sruserve.server.tasks.completion import Completion
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.constraint_cache import ConstraintCache
from sruserve.server.tasks.error_mapping import as_serve_error
from sruserve.server.tasks.limits import InputLimits
from sruserve.server.tasks.per_input import PerInputTask, Results
from sruserve.server.tasks.requests import ChunkRequest, Request
from sruserve.server.tasks.table import Tasks
from sruserve.server.tasks.task import Task

R = TypeVar("R", bound=Request)

# Requests of a model at a time; others wait for their turn, and none is refused for a full queue.
_PLACES = 64
_CONTENTS = ("prompt", "input", "pair", "features")


class LocalModel:
    """A model with its engine, on the event loop of this process.

    Its coroutines run on that loop: `loop.run` waits for one on any other thread, `loop.join` on
    any other event loop. A cancelled one withdraws its work.

    served: the model and its states. limits: of one request.
    """

    def __init__(self, loop: EventLoop, settings: Settings, lifecycle: Lifecycle) -> None:
        self.loop, self.settings = loop, settings
        self._lifecycle = lifecycle
        limit = process_limit()
        self._constraints = ConstraintCache(settings.max_grammar_bytes, startable=limit)
        lifecycle.repository.on_end.append(self._constraints.end)
        self.limits = InputLimits.of(settings)
        self._tasks = Tasks.create(lifecycle.catalogue, self.limits, self._constraints)
        self._by_schema: dict[type[Request], Task[Any]] = {
            task.schema: task for task in self._tasks
        }
        (self.served,) = lifecycle.catalogue.every()
        self._places = FairSemaphore(_PLACES)
        self._answering = InFlight()
        self._closed = False
        loop.on_exit.add(self._stop_now)

    @classmethod
    def load(cls, settings: Settings) -> Self:
        """Load the model of the settings; returns when it is warm.

        Raises `ModelLoadFailed`, or another `ServeError`.
        """
        loop = event_loop()
        return loop.run(cls._load(loop, settings))

    @classmethod
    async def _load(cls, loop: EventLoop, settings: Settings) -> Self:
        lifecycle = Lifecycle(settings)
        starting = asyncio.ensure_future(lifecycle.start())
        try:
            await asyncio.shield(starting)
            return cls(loop, settings, lifecycle)
        except asyncio.CancelledError:  # the thread that loads cannot be interrupted
            starting.add_done_callback(lambda _: asyncio.ensure_future(lifecycle.stop()))
            raise
        except BaseException as error:
            await lifecycle.stop()
            if isinstance(error, (ModelError, SettingsError, OSError)):
                raise ModelLoadFailed(str(error), param="model") from error
            raise

    async def answer(self, request: ChunkRequest) -> list[dict[str, Any]]:
        """The results of a request in plain values, one for each input: those of `/v1`.

        They wait for their turn if many requests run. Raises `ServeError`.
        """
        async with self.results(request) as (task, results):
            results_of = results.results

            def describe() -> list[dict[str, Any]]:
                return [task.describe(self.served, item, result) for item, result in results_of]

            return await offload(results.large, describe)

    @asynccontextmanager
    async def results(
        self, request: ChunkRequest
    ) -> AsyncIterator[tuple[PerInputTask[Any], Results]]:
        """The task of a request and its results as the engine makes them, with arrays."""
        task = self._by_schema[type(request)]
        assert isinstance(task, PerInputTask)
        with self._answering, self._call(request) as (caller, served):
            async with self._places.place(None):
                with await task.run(caller, request, served, _cost(request)) as results:
                    yield task, results

    @asynccontextmanager
    async def complete(
        self, request: CompletionRequest
    ) -> AsyncIterator[tuple[LocalCaller, Completion]]:
        """A completion that runs until the block ends. Its caller watches it while it streams."""
        with self._call(request) as (caller, served):
            async with self._tasks.complete.run(
                caller, request, served, _cost(request)
            ) as completion:
                yield caller, completion

    @contextmanager
    def _call(self, request: Request) -> Iterator[tuple[LocalCaller, ServedModel]]:
        """Choose the model for a request, which is then in flight."""
        if self._closed:
            raise ModelClosed
        request.model = self.served.name
        served = self._by_schema[type(request)].choose(request)
        try:
            with LocalCaller() as caller, served.in_flight:
                caller.model = served.name
                yield caller, served
        except Draining:
            raise ModelClosed from None

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """End the engine, once; running requests that are not done in time fail."""
        if self._closed:
            return
        self._closed = True
        self.loop.on_exit.discard(self._stop_now)
        self._lifecycle.draining = True
        deadline = monotonic() + drain_seconds
        with suppress(TimeoutError):  # also those that wait for their turn
            await asyncio.wait_for(self._answering.wait_idle(), drain_seconds)
        await self._lifecycle.repository.stop(max(0.0, deadline - monotonic()))
        self._constraints.close()

    async def _stop_now(self) -> None:
        await self.stop()

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._closed


def make_request(schema: type[R], **fields: Any) -> R:
    """A validated request of the fields that are not None; raises `ServeError`."""
    try:
        return schema(**{name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise as_serve_error(error, schema) from None


def _cost(request: Any) -> int:
    """Characters, ids or numbers of a request, about: what its job counts in the queue."""
    fields = (
        ("prompt",) if isinstance(request, CompletionRequest) else ("input", "pair", "features")
    )
    return sum(_size(getattr(request, field, None)) for field in fields)


def _size(value: Any) -> int:
    if value is None or isinstance(value, str):
        return len(value or "")
    if value and isinstance(value[0], (int, float)):
        return 4 * len(value)
    return sum(map(_size, value))
