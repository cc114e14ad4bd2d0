"""What the processes of all grammars hold together, and which one ends when that is too much."""

import threading
from typing import Protocol
from weakref import WeakSet

from sruserve.server.errors import Overloaded, ServeError

PROCESS_BYTES = 4 << 20  # of a process before it holds anything: pages that it shares no more


class Holder(Protocol):
    """A process that holds a grammar."""

    held_bytes: int

    def end(self, reason: ServeError | None = None) -> None:
        """Let the process end, and tell its texts why; from any thread."""
        ...


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

    def add(self, holder: Holder) -> None:
        """Count a process from now on."""
        with self._lock:
            self._holders.add(holder)

    def forget(self, holder: Holder) -> None:
        """A process has ended."""
        with self._lock:
            self._holders.discard(holder)

    def check(self) -> None:
        """End the process that holds most, if all hold too much; from any thread."""
        with self._lock:
            if self._sum() <= self.most_bytes:
                return
            largest = max(self._holders, key=_held_bytes)
            self._holders.discard(largest)
        largest.end(
            Overloaded(
                "all regular expressions and schemas together take more memory than they may "
                "(SRUSERVE_MAX_GRAMMAR_BYTES), and this one took most; retry after a moment"
            )
        )

    def _sum(self) -> int:
        return sum(_held_bytes(holder) for holder in self._holders)


def _held_bytes(holder: Holder) -> int:
    return PROCESS_BYTES + holder.held_bytes
