"""What the processes of all grammars hold together, and which one ends when that is too much."""

import threading
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakSet

from sruserve.server.errors import Overloaded, ServeError

PROCESS_BYTES = 4 << 20  # of a process before it holds anything: pages that it shares no more


class Holder(Protocol):
    """A process that holds a grammar, and whose it is."""

    held_bytes: int

    @property
    def owner(self) -> Hashable:
        """Who has a part of the memory; None: without API keys nobody has."""
        ...

    def end(self, reason: ServeError | None = None) -> None:
        """Let the process end, and tell its texts why; from any thread."""
        ...


@dataclass(slots=True)
class Taken:
    """What the processes of one owner take together."""

    processes: int = 0
    bytes: int = 0


class GrammarMemory:
    """Counts what processes say that they hold, for as long as somebody holds these.

    most_bytes: of all together; a step may take it beyond by what one process may grow.
    """

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._holders: WeakSet[Holder] = WeakSet()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many processes there are."""
        return len(self._holders)

    @property
    def held_bytes(self) -> int:
        """What they hold together."""
        with self._lock:
            return self._sum()

    def by_owner(self) -> dict[Hashable, Taken]:
        """What each owner's processes take."""
        with self._lock:
            return self._by_owner()

    def add(self, holder: Holder) -> None:
        """Count a process from now on."""
        with self._lock:
            self._holders.add(holder)

    def forget(self, holder: Holder) -> None:
        """A process has ended."""
        with self._lock:
            self._holders.discard(holder)

    def check(self) -> None:
        """If all hold too much, end the largest of the owner who has most; from any thread."""
        with self._lock:
            if self._sum() <= self.most_bytes:
                return
            taken = self._by_owner()
            owner = max(taken, key=lambda owner: taken[owner].bytes)
            own = [holder for holder in self._holders if holder.owner == owner]
            largest = max(own, key=_held_bytes)
            self._holders.discard(largest)
        largest.end(
            Overloaded(
                "all regular expressions and schemas together take more memory than they may "
                "(SRUSERVE_MAX_GRAMMAR_BYTES), and this one is the largest of the client that has "
                "most; retry after a moment"
            )
        )

    def _by_owner(self) -> dict[Hashable, Taken]:
        owners: defaultdict[Hashable, Taken] = defaultdict(Taken)
        for holder in self._holders:
            taken = owners[holder.owner]
            taken.processes += 1
            taken.bytes += _held_bytes(holder)
        return owners

    def _sum(self) -> int:
        return sum(_held_bytes(holder) for holder in self._holders)


def _held_bytes(holder: Holder) -> int:
    return PROCESS_BYTES + holder.held_bytes
