"""Compile the constraints of requests in processes, once for each tenant and model."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from importlib.util import find_spec

from sruserve.server.budget import Budget
from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.process_client import (
    STALL_SECONDS,
    Bounds,
    GrammarProcess,
)
from sruserve.server.engine.constrained.process_host import GrammarHost
from sruserve.server.engine.constrained.remote_state import RemoteConstraint
from sruserve.server.engine.job_engine import JobEngine
from sruserve.server.errors import (
    DeadlineExceeded,
    GrammarsNeedLlguidance,
    InvalidRequest,
    NoProcess,
    Overloaded,
)
from sruserve.server.fair_semaphore import FairSemaphore
from sruserve.server.json_output import json_bytes, long_json
from sruserve.server.offload import LONG_BYTES, offload
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.completion_request import CompletionRequest, Schema
from sruserve.server.tasks.constraint_store import MAX_PROCESSES, ConstraintStore

MAX_WAITING, MAX_WAITING_OF_ONE = 64, 32
_MAX_BYTES = 256 << 10  # of a regex or schema, as JSON
_QUICK_SECONDS = 0.25  # a longer compilation gives up its turn
_MAX_LARGE = 2  # longer compilations at a time; one of each tenant
TIMEOUT_SECONDS = 10.0


class ConstraintCache:
    """The constraints of requests: those of recent requests, and those that are compiled now.

    max_bytes, startable, max_processes: as of its `ConstraintStore`.
    timeout_seconds: the longest wait for a compilation.
    stall_seconds: after which a process that does not answer ends.
    clock: of the deadlines, in monotonic seconds.
    """

    def __init__(
        self,
        max_bytes: int,
        bounds: Bounds | None = None,
        startable: int | None = None,
        max_processes: int = MAX_PROCESSES,
        timeout_seconds: float = TIMEOUT_SECONDS,
        stall_seconds: float = STALL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.timeout_seconds, self.stall_seconds = timeout_seconds, stall_seconds
        self._clock = clock
        self._installed = find_spec("llguidance") is not None  # the processes import it
        self.host = GrammarHost()
        self._bounds = bounds or Bounds()
        self.store = ConstraintStore(max_bytes, startable, max_processes)
        self.compiling: dict[bytes, _Compiling] = {}
        self._waiting = Budget(MAX_WAITING, _too_many, MAX_WAITING_OF_ONE, yields=True)
        self._turns = FairSemaphore(1)
        self._large = Budget(_MAX_LARGE, _too_large, 1)

    async def of(
        self,
        caller: Caller,
        request: CompletionRequest,
        served: ServedModel,
        deadline: float,
        cost: int,
    ) -> RemoteConstraint | None:
        """The constraint of a request's text, if it has one.

        cost: bytes of the request, an upper bound of its schema's size.

        Raises `InvalidRequest`, `ConstraintUnsatisfiable`, `Overloaded` if too many requests wait,
        `DeadlineExceeded` at the deadline or after a long wait, or `GrammarsNeedLlguidance`.
        """
        constraint = _constraint_field(request)
        if constraint is None:
            return None
        field, content = constraint
        if not self._installed:
            raise GrammarsNeedLlguidance(param=field)
        if isinstance(content, str) and len(content) > _MAX_BYTES:
            raise _too_long(field)
        long = cost > LONG_BYTES
        write = long_json if long else json_bytes
        text = await offload(long, write, content, cost=cost, caller=caller)
        if len(text) > _MAX_BYTES:
            raise _too_long(field)
        # only one engine's thread may use a process
        engine = served.engine.number.to_bytes(8, "big")
        key = sha256(engine + served.tenant.id + field.encode() + b"\0" + text).digest()
        cached = self.store.fresh(key)
        if cached is not None:
            return cached
        waiting = asyncio.create_task(self._wait(key, field, content, served, deadline))
        await caller.wait(waiting)
        return waiting.result()

    @property
    def waiting(self) -> int:
        """The number of waiting and running compilations."""
        return self._waiting.used

    def end(self, engine: JobEngine) -> None:
        """Drop the constraints of an engine that has ended."""
        self.store.drop_engine(engine.number)

    def close(self) -> None:
        """End all processes."""
        self.store.entries.clear()
        self.host.close()

    async def _wait(
        self, key: bytes, field: str, content: str | Schema, served: ServedModel, deadline: float
    ) -> RemoteConstraint:
        """Wait for a compilation, which is cancelled when its last waiter leaves."""
        compiling = self.compiling.get(key)
        if compiling is None:
            task = asyncio.create_task(self._compile(key, field, content, served))
            compiling = self.compiling[key] = _Compiling(task)
        seconds = self.timeout_seconds
        if deadline:
            seconds = min(seconds, deadline - self._clock())
        compiling.waiters += 1
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(compiling.task)
        except TimeoutError:
            raise DeadlineExceeded(
                f"'{field}' was not compiled in time; retry when the server is less busy"
            ) from None
        finally:
            compiling.waiters -= 1
            if not compiling.waiters:
                compiling.task.cancel()
                if self.compiling.get(key) is compiling:
                    del self.compiling[key]

    async def _compile(
        self, key: bytes, field: str, content: str | Schema, served: ServedModel
    ) -> RemoteConstraint:
        """Compile and cache a constraint. A quick compilation never waits for a slow one."""
        kind = "regex" if field == "regex" else "json_schema"
        compilation: asyncio.Task[RemoteConstraint] | None = None
        try:
            vocabulary = ByteVocabulary.of(served.model.codec)
            async with self._turn(served.owner):
                self.store.make_room(served.owner)
                channel = await self.host.fork()
                process = GrammarProcess(
                    self.host,
                    channel,
                    self.store.memory,
                    self._bounds,
                    served.owner,
                    self.stall_seconds,
                )
                await process.start()
                compilation = asyncio.create_task(
                    RemoteConstraint.compile(kind, content, vocabulary, process)
                )
                await asyncio.wait({compilation}, timeout=_QUICK_SECONDS)
            if compilation.done():
                constraint = compilation.result()
            else:
                with self._large.hold(1, served.owner):
                    constraint = await compilation
        except InvalidRequest as error:
            error.param = field
            raise
        except NoProcess:
            self.store.drop_all_unused()  # so that other work can start processes
            raise
        finally:
            if compilation is not None:
                compilation.cancel()
            del compilation  # its error would refer to this frame, and so to the process
        self.store.add(key, served.engine.number, constraint)
        return constraint

    @asynccontextmanager
    async def _turn(self, owner: str | None) -> AsyncIterator[None]:
        """Wait for a turn to compile, or raise `Overloaded` if too many requests wait already."""
        with self._waiting.hold(1, owner):
            async with self._turns.place(owner):
                yield


class _Compiling:
    """A compilation, and the number of its waiters."""

    def __init__(self, task: asyncio.Task[RemoteConstraint]) -> None:
        self.task = task
        self.waiters = 0
        task.add_done_callback(_retrieve_error)


def _retrieve_error(task: asyncio.Task[RemoteConstraint]) -> None:
    """Retrieve an error that no waiter may have seen, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def _constraint_field(request: CompletionRequest) -> tuple[str, str | Schema] | None:
    """The field that constrains the text, and its value."""
    if request.regex is not None:
        return "regex", request.regex
    if request.json_schema is not None:
        return "json_schema", request.json_schema
    schema = request.schema_of_format
    return None if schema is None else ("response_format", schema)


def _too_long(field: str) -> InvalidRequest:
    return InvalidRequest(f"'{field}' has more than {_MAX_BYTES} bytes; simplify it", param=field)


def _too_many() -> Overloaded:
    return Overloaded(
        "too many regular expressions and schemas are waiting to be compiled; retry after a moment"
    )


def _too_large() -> Overloaded:
    return Overloaded(
        "other slow regular expressions or schemas are being compiled; retry after a moment, or "
        "simplify this one"
    )
