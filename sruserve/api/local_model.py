"""One model in this process: validated requests in, results of the server's tasks out."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Self, TypeVar
from weakref import finalize

import numpy as np
from pydantic import ValidationError

from sruserve.api.caller import LocalCaller
from sruserve.api.event_loop import EventLoop, event_loop
from sruserve.api.inputs import check_texts
from sruserve.model.errors import ModelError
from sruserve.server.errors import Draining, ModelClosed, ModelLoadFailed
from sruserve.server.fair_semaphore import FairSemaphore
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.offload import POOL, offload
from sruserve.server.process_limits import process_limit
from sruserve.server.repository.served import InFlight, Served
from sruserve.server.repository.served_model import ServedModel, with_states
from sruserve.server.settings import Settings, SettingsError
from sruserve.server.tasks.complete import CompleteTask
from sruserve.server.tasks.completion import CompletionResponse
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.constraint_cache import ConstraintCache
from sruserve.server.tasks.error_mapping import as_serve_error
from sruserve.server.tasks.limits import InputLimits
from sruserve.server.tasks.per_input import PerInputTask, Results
from sruserve.server.tasks.requests import ModelRequest, WordFeatures
from sruserve.server.tasks.table import AnyTask, Tasks

R = TypeVar("R", bound=ModelRequest)

# Requests of a model at a time; others wait for their turn, and none is refused for a full queue.
_PLACES = 64
_LONG_CHARACTERS = 128 << 10  # of texts for a thread, if nobody else waits for the loop
_CONTENTS = ("input", "pair", "features", "question", "context")


class LocalModel:
    """A model with its engine, on the event loop of this process.

    Its coroutines run on that loop: `loop.run` waits for one on any other thread, `loop.join` on
    any other event loop. A cancelled one withdraws its work.

    served: the model and its states. limits: of one request.
    """

    def __init__(self, loop: EventLoop, settings: Settings, lifecycle: Lifecycle) -> None:
        self.loop, self.settings = loop, settings
        limit = process_limit()
        self._constraints = ConstraintCache(settings.max_grammar_bytes, startable=limit)
        lifecycle.repository.on_end.append(self._constraints.end)
        self.limits = InputLimits.of(settings)
        self._tasks = Tasks.create(lifecycle.catalogue, self.limits, self._constraints)
        self._by_schema: dict[type[ModelRequest], AnyTask] = {
            task.schema: task for task in self._tasks
        }
        self._per_input: dict[type[ModelRequest], PerInputTask] = {
            task.schema: task for task in self._tasks if isinstance(task, PerInputTask)
        }
        (self.served,) = lifecycle.catalogue.every()
        self._places = FairSemaphore(_PLACES)
        self._answering = InFlight()
        self._closed = False
        self._ending = _Ending(loop, lifecycle, self._constraints)
        # a model that is dropped ends, too; this refers to what it has, and not to itself
        finalize(self, loop.start_soon, self._ending).atexit = False

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

    async def answer(self, request: ModelRequest) -> list[dict[str, Any]]:
        """The results of a request in plain values, one for each input: those of `/v1`.

        They wait for their turn if many requests run. Raises `ServeError`.
        """
        async with self.results(request) as (task, results):
            results_of, served = results.results, self.served

            def describe() -> list[dict[str, Any]]:
                return [task.describe(served, item, result) for item, result in results_of]

            return await offload(results.large, describe)

    @asynccontextmanager
    async def results(
        self, request: ModelRequest, served: ServedModel | None = None
    ) -> AsyncIterator[tuple[PerInputTask, Results]]:
        """The task of a request and its results as the engine makes them, with arrays.

        served: a view of the model for this request; None: the model.
        """
        task = self._per_input[type(request)]
        with self._answering, self._call(request, served) as (caller, model):
            async with self._places.place(None):
                with await task.run(caller, request, model, _cost(request)) as results:
                    yield task, results

    @asynccontextmanager
    async def complete(
        self, request: CompletionRequest, served: ServedModel | None = None
    ) -> AsyncIterator[tuple[LocalCaller, CompletionResponse]]:
        """A completion that runs until the block ends. Its caller watches it while it streams.

        served: as for `results`.
        """
        with self._call(request, served) as (caller, model):
            async with self._tasks[CompleteTask].run(
                caller, request, with_states(model), _cost(request)
            ) as completion:
                yield caller, completion

    @contextmanager
    def _call(
        self, request: ModelRequest, served: ServedModel | None
    ) -> Iterator[tuple[LocalCaller, Served]]:
        """Check a request against the model, which then has it in flight."""
        self.check_open()
        request.model = self.served.name
        task = self._by_schema[type(request)]
        model = served or task.choose(request)
        try:
            with LocalCaller() as caller, model.in_flight:
                caller.model = model.name
                yield caller, model
        except Draining:
            raise ModelClosed from None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let one caller alone use the model.

        Its texts are tokenized on the loop unless long: for short ones, a thread costs more than it
        saves. Its steps may take long.
        """
        served = self.served
        if not isinstance(served, ServedModel):
            yield
            return
        before = served.long_characters
        if served.pool is POOL:  # otherwise the tokenizer may be very slow
            served.long_characters = max(before, _LONG_CHARACTERS)
        served.engine.alone = True
        try:
            yield
        finally:
            served.engine.alone = False
            served.long_characters = before

    async def stop(self, drain_seconds: float = 0.0) -> None:
        """End the engine. Open completions end at once: with their state, or else they fail.

        drain_seconds: how long other running requests may take; then they fail.
        """
        self._closed = True
        with suppress(TimeoutError):  # also those that wait for their turn
            await asyncio.wait_for(self._answering.wait_idle(), drain_seconds)
        await self._ending()

    @property
    def with_states(self) -> ServedModel:
        """The model as one whose streams have states; raises `CannotStream`."""
        return with_states(self.served)

    @property
    def step_rows(self) -> int:
        """Inputs that one step of the engine takes; 0: they are no measure of its work."""
        served = self.served
        return served.engine.step_rows if isinstance(served, ServedModel) else 0

    def check_open(self) -> None:
        """Raise `ModelClosed` after `stop`, and `ForkedProcess` in a forked process."""
        self.loop.check()
        if self._closed:
            raise ModelClosed

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._closed


class _Ending:
    """Ends the engine and the grammars of a model."""

    def __init__(self, loop: EventLoop, lifecycle: Lifecycle, constraints: ConstraintCache) -> None:
        self._loop, self._lifecycle, self._constraints = loop, lifecycle, constraints
        loop.on_exit.add(self)

    async def __call__(self) -> None:
        await self._lifecycle.stop()
        self._constraints.close()
        self._loop.on_exit.discard(self)


def make_request(schema: type[R], **fields: Any) -> R:
    """A validated request of the fields that are not None; raises `ServeError`."""
    for name, value in fields.items():
        check_texts(name, value)
    try:
        return schema(**{name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise as_serve_error(error, schema) from None


def _cost(request: Any) -> int:
    """Characters, ids or numbers of a request, about: what its job counts in the queue."""
    fields = ("prompt",) if isinstance(request, CompletionRequest) else _CONTENTS
    return sum(_size(getattr(request, field, None)) for field in fields)


def _size(value: Any) -> int:
    if value is None or isinstance(value, str):
        return len(value or "")
    if isinstance(value, WordFeatures):
        return sum(map(_size, value.model_dump().values()))
    if isinstance(value, np.ndarray):
        return value.nbytes
    if value and isinstance(value[0], str):
        return sum(map(len, value))
    if value and isinstance(value[0], (int, float)):
        return 4 * len(value)
    return sum(map(_size, value))
