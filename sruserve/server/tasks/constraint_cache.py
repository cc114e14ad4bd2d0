"""Compiled constraints: made once for a tenant's model, in processes, and kept for a while."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from time import monotonic
from weakref import ref

from sruserve.server.budget import Budget
from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.memory_budget import GrammarMemory, OwnerUsage
from sruserve.server.engine.constrained.process_client import Bounds, GrammarProcess, running
from sruserve.server.engine.constrained.process_host import GrammarHost
from sruserve.server.engine.constrained.remote_state import RemoteConstraint
from sruserve.server.engine.engine import Engine
from sruserve.server.errors import (
    DeadlineExceeded,
    GrammarsNeedLlguidance,
    InvalidRequest,
    NoProcess,
    Overloaded,
)
from sruserve.server.json_output import json_bytes, long_json
from sruserve.server.offload import LONG_BYTES, offload
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.completion_request import CompletionRequest, Schema
from sruserve.server.tasks.line import Line

MOST_PROCESSES, _LEAST_PROCESSES = 64, 2
MOST_WAITING, MOST_WAITING_OF_ONE = 64, 32
_MOST_BYTES = 256 << 10  # of a regex or schema, as JSON
_QUICK_SECONDS = 0.25  # what takes longer gives its turn up
_MOST_LARGE = 2  # of those at a time; one of each tenant
PATIENCE_SECONDS = 10.0


class ConstraintCache:
    """The constraints that were asked for last, of all models.

    most_bytes: of all their processes together, which `memory` counts.
    startable: how many processes and threads this one may start; None: as many as it likes.
    most_processes: how many may be kept or in use: half of what may be started is left to threads.
    patience_seconds: the longest wait for a compilation.
    """

    def __init__(
        self,
        most_bytes: int,
        bounds: Bounds | None = None,
        startable: int | None = None,
        most_processes: int = MOST_PROCESSES,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        if startable is not None:
            most_processes = max(_LEAST_PROCESSES, min(most_processes, startable // 2))
        self.most_processes, self.patience_seconds = most_processes, patience_seconds
        self._installed = find_spec("llguidance") is not None  # the processes import it
        self.host = GrammarHost()
        self._bounds = bounds or Bounds()
        self.memory = GrammarMemory(most_bytes)
        self.kept: OrderedDict[bytes, CachedConstraint] = OrderedDict()
        self.compiling: dict[bytes, _Compiling] = {}
        self._places = Budget(MOST_WAITING, _too_many, MOST_WAITING_OF_ONE)
        self._line = Line(self._places)
        self._large = Budget(_MOST_LARGE, _too_large, 1)

    async def of(
        self,
        caller: Caller,
        request: CompletionRequest,
        served: ServedModel,
        deadline: float,
        cost: int,
    ) -> RemoteConstraint | None:
        """What the text of a request has to match, if anything.

        cost: bytes of the request, and so the most of a schema in it.

        Raises `InvalidRequest`, `ConstraintUnsatisfiable`, `Overloaded` when too many others wait
        for theirs, `DeadlineExceeded` at the deadline, or when the wait has been long, or
        `GrammarsNeedLlguidance`.
        """
        asked = _asked(request)
        if asked is None:
            return None
        field, given = asked
        if not self._installed:
            raise GrammarsNeedLlguidance(param=field)
        if isinstance(given, str) and len(given) > _MOST_BYTES:
            raise _too_long(field)
        long = cost > LONG_BYTES
        write = long_json if long else json_bytes
        said = await offload(long, write, given, cost=cost, caller=caller)
        if len(said) > _MOST_BYTES:
            raise _too_long(field)
        # a process is asked by one engine's thread alone
        engine = served.engine.number.to_bytes(8, "big")
        key = sha256(engine + served.tenant.id + field.encode() + b"\0" + said).digest()
        kept = self.kept.get(key)
        if kept is not None and kept.constraint.process.fresh:
            self.kept.move_to_end(key)
            return kept.constraint
        waiting = asyncio.create_task(self._wait(key, field, given, served, deadline))
        await caller.wait(waiting)
        return waiting.result()

    @property
    def waiting(self) -> int:
        """How many wait to be compiled, or are."""
        return self._places.held

    def end(self, engine: Engine) -> None:
        """An engine has ended: nobody asks for its constraints any more."""
        for key in [key for key, kept in self.kept.items() if kept.engine == engine.number]:
            del self.kept[key]

    def close(self) -> None:
        """End all processes."""
        self.kept.clear()
        self.host.close()

    async def _wait(
        self, key: bytes, field: str, given: str | Schema, served: ServedModel, deadline: float
    ) -> RemoteConstraint:
        """Wait for a compilation, which ends when nobody waits for it any more."""
        compiling = self.compiling.get(key)
        if compiling is None:
            task = asyncio.create_task(self._compile(key, field, given, served))
            compiling = self.compiling[key] = _Compiling(task)
        seconds = self.patience_seconds
        if deadline:
            seconds = min(seconds, deadline - monotonic())
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
        self, key: bytes, field: str, given: str | Schema, served: ServedModel
    ) -> RemoteConstraint:
        """A constraint, which is kept; one that is quick never waits for one that is not."""
        kind = "regex" if field == "regex" else "json_schema"
        making: asyncio.Task[RemoteConstraint] | None = None
        try:
            alphabet = ByteVocabulary.of(served.model.codec)
            async with self._line.turn(served.owner):
                self._make_room(served.owner)
                channel = await self.host.fork()
                process = GrammarProcess(
                    self.host, channel, self.memory, self._bounds, served.owner
                )
                await process.start()
                making = asyncio.create_task(
                    RemoteConstraint.compiled(kind, given, alphabet, process)
                )
                await asyncio.wait({making}, timeout=_QUICK_SECONDS)
            if making.done():
                constraint = making.result()
            else:
                with self._large.hold(1, served.owner):
                    constraint = await making
        except InvalidRequest as error:
            error.param = field
            raise
        except NoProcess:
            self._let_go([*self.kept], lambda: True)  # for what else waits for processes, too
            raise
        finally:
            if making is not None:
                making.cancel()
            del making  # its error would hold this frame, and with it the process
        self.kept[key] = CachedConstraint(served.engine.number, constraint)
        return constraint

    def _make_room(self, owner: str | None) -> None:
        """Let go of those that are not in use, the owner's own first, then the longest unused.

        Raises `Overloaded` if that is not enough.
        """
        self._forget_ended()
        own = [key for key, kept in self.kept.items() if kept.constraint.process.owner == owner]
        if owner is not None and not self._let_go(own, lambda: self._has_its_part(owner)):
            raise Overloaded(
                "the regular expressions and schemas in use by this API key fill its share of "
                "the memory or processes, half of the limit (SRUSERVE_MAX_GRAMMAR_BYTES); retry "
                "after a moment"
            )
        if not self._let_go([*own, *self.kept], lambda: self._full):
            raise Overloaded(
                "the regular expressions and schemas in use fill the memory or processes for "
                "all of them (limit: SRUSERVE_MAX_GRAMMAR_BYTES); retry after a moment"
            )

    def _forget_ended(self) -> None:
        """Let go of the descriptors of processes that have ended."""
        alive = running(kept.constraint.process for kept in self.kept.values())
        for key in [key for key, kept in self.kept.items() if kept.constraint.process not in alive]:
            del self.kept[key]

    def _let_go(self, keys: list[bytes], full: Callable[[], bool]) -> bool:
        """Let go of those that are not in use while there is no room; whether there is some."""
        for key in keys:
            if not full():
                return True
            if key in self.kept and self.kept[key].let_go():
                del self.kept[key]
        return not full()

    def _has_its_part(self, owner: str) -> bool:
        """Whether an owner has half of what there is for new ones, so that others have room."""
        taken = self.memory.by_owner().get(owner, OwnerUsage())
        return taken.processes >= self.most_processes // 2 or taken.bytes > self._part

    @property
    def _full(self) -> bool:
        """Whether another would be too many; those that grow take no owner's part but theirs."""
        held = sum(
            taken.bytes if owner is None else min(taken.bytes, self._part)
            for owner, taken in self.memory.by_owner().items()
        )
        return len(self.memory) >= self.most_processes or held > self.memory.most_bytes // 2

    @property
    def _part(self) -> int:
        """Bytes of one owner. Half of all is left to those that grow, half of that to others."""
        return self.memory.most_bytes // 4


@dataclass(slots=True)
class CachedConstraint:
    """A constraint that may be asked for again, and the number of its engine."""

    engine: int
    constraint: RemoteConstraint

    def let_go(self) -> bool:
        """Let go of it, and be of no more use, if nobody else holds it."""
        held = ref(self.constraint)
        del self.constraint
        constraint = held()
        if constraint is None:
            return True
        self.constraint = constraint
        return False


class _Compiling:
    """A compilation, and how many wait for it."""

    def __init__(self, task: asyncio.Task[RemoteConstraint]) -> None:
        self.task = task
        self.waiters = 0
        task.add_done_callback(_see)


def _see(task: asyncio.Task[RemoteConstraint]) -> None:
    """Look at an error that everybody who waited for it may have left."""
    if not task.cancelled():
        task.exception()


def _asked(request: CompletionRequest) -> tuple[str, str | Schema] | None:
    """The field that constrains the text, and what it says."""
    if request.regex is not None:
        return "regex", request.regex
    if request.json_schema is not None:
        return "json_schema", request.json_schema
    schema = request.schema_of_format
    return None if schema is None else ("response_format", schema)


def _too_long(field: str) -> InvalidRequest:
    return InvalidRequest(f"'{field}' has more than {_MOST_BYTES} bytes; simplify it", param=field)


def _too_many() -> Overloaded:
    return Overloaded(
        "too many regular expressions and schemas are waiting to be compiled; retry after a moment"
    )


def _too_large() -> Overloaded:
    return Overloaded(
        "other slow regular expressions or schemas are being compiled; retry after a moment, or "
        "simplify this one"
    )
