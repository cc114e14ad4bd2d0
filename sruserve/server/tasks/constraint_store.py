"""The compiled constraints of recent requests, and the room that each owner has for them."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from weakref import ref

from sruserve.server.engine.constrained.memory_budget import GrammarMemory, OwnerUsage
from sruserve.server.engine.constrained.process_client import running
from sruserve.server.engine.constrained.remote_state import RemoteConstraint
from sruserve.server.errors import Overloaded

MAX_PROCESSES, _MIN_PROCESSES = 64, 2
_RESERVE = 8  # 1/8 of the processes and of the memory is for owners that have none


class ConstraintStore:
    """The constraints of recent requests, of all models, the least recently used first.

    max_bytes: of all their processes together, which `memory` counts.
    startable: the limit of processes and threads of this process; None: no limit.
    max_processes: cached and used ones: half of `startable` is left to threads.
    """

    def __init__(self, max_bytes: int, startable: int | None, max_processes: int) -> None:
        if startable is not None:
            max_processes = max(_MIN_PROCESSES, min(max_processes, startable // 2))
        self.max_processes = max_processes
        self.memory = GrammarMemory(max_bytes)
        self.entries: OrderedDict[bytes, CachedConstraint] = OrderedDict()

    def fresh(self, key: bytes) -> RemoteConstraint | None:
        """A constraint that a request may use, if it is here; it is the last one to be dropped."""
        cached = self.entries.get(key)
        if cached is None or not cached.constraint.process.fresh:
            return None
        self.entries.move_to_end(key)
        return cached.constraint

    def add(self, key: bytes, engine: int, constraint: RemoteConstraint) -> None:
        """Keep a new constraint. engine: the number of the engine that may use it."""
        self.entries[key] = CachedConstraint(engine, constraint)

    def drop_engine(self, engine: int) -> None:
        """Drop the constraints of an engine."""
        for key in [key for key, cached in self.entries.items() if cached.engine == engine]:
            del self.entries[key]

    def drop_all_unused(self) -> None:
        """Drop all constraints that are not in use."""
        self._drop_unused([*self.entries], lambda: True)

    def make_room(self, owner: str | None) -> None:
        """Drop unused constraints, first the owner's and then the least recently used.

        Raises `Overloaded` if that does not make enough room.
        """
        self._drop_ended()
        own = [
            key for key, cached in self.entries.items() if cached.constraint.process.owner == owner
        ]
        if owner is not None and not self._drop_unused(own, lambda: self._has_its_part(owner)):
            raise Overloaded(
                "the regular expressions and schemas in use by this API key fill its share of "
                "the memory or processes, half of the limit (SRUSERVE_MAX_GRAMMAR_BYTES); retry "
                "after a moment"
            )
        if not self._drop_unused([*own, *self.entries], lambda: self._is_full(owner)):
            raise Overloaded(
                "the regular expressions and schemas in use fill the memory or processes for "
                "all of them (limit: SRUSERVE_MAX_GRAMMAR_BYTES); retry after a moment"
            )

    def _drop_ended(self) -> None:
        """Drop the constraints whose processes have ended."""
        alive = running(cached.constraint.process for cached in self.entries.values())
        for key in [
            key for key, cached in self.entries.items() if cached.constraint.process not in alive
        ]:
            del self.entries[key]

    def _drop_unused(self, keys: list[bytes], is_full: Callable[[], bool]) -> bool:
        """Drop unused constraints until `is_full()` is false; return whether there is room."""
        for key in keys:
            if not is_full():
                return True
            if key in self.entries and self.entries[key].drop_unused():
                del self.entries[key]
        return not is_full()

    def _has_its_part(self, owner: str) -> bool:
        """Whether an owner uses its share, half of the room for new constraints."""
        usage = self.memory.by_owner().get(owner, OwnerUsage())
        return usage.processes >= self.max_processes // 2 or usage.bytes > self._part

    def _is_full(self, owner: str | None) -> bool:
        """Whether there is no room for another; the last eighth is for owners that have none.

        An owner counts at most with its part.
        """
        owners = self.memory.by_owner()
        used = sum(
            usage.bytes if each is None else min(usage.bytes, self._part)
            for each, usage in owners.items()
        )
        processes, room = self.max_processes, self.memory.max_bytes // 2
        if owner is not None and owner in owners:
            processes, room = processes - processes // _RESERVE, room - room // _RESERVE
        return len(self.memory) >= processes or used > room

    @property
    def _part(self) -> int:
        """The byte limit of one owner: half is left to growing ones, half of the rest to others."""
        return self.memory.max_bytes // 4


@dataclass(slots=True)
class CachedConstraint:
    """A cached constraint, and the number of its engine."""

    engine: int
    constraint: RemoteConstraint

    def drop_unused(self) -> bool:
        """Drop the constraint unless it is in use; returns whether it was dropped."""
        reference = ref(self.constraint)
        del self.constraint
        constraint = reference()
        if constraint is None:
            return True
        self.constraint = constraint
        return False
