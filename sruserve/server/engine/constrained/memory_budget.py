"""The memory of all grammar processes together, and the process to end when it is too much."""

import threading
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakSet

from sruserve.server.errors import Overloaded, ServeError

PROCESS_BYTES = 4 << 20  # of a process without a grammar: pages that it no longer shares


class CountedProcess(Protocol):
    """A process that holds a grammar, and its owner."""

    used_bytes: int

    @property
    def owner(self) -> Hashable:
        """The owner whose share of the memory the process uses; None: no API keys, no shares."""
        ...

    def end(self, reason: ServeError | None = None) -> None:
        """End the process, and fail its texts with `reason`; from any thread."""
        ...


@dataclass(slots=True)
class OwnerUsage:
    """The processes of one owner, and their memory together."""

    processes: int = 0
    bytes: int = 0


class GrammarMemory:
    """Sums the memory that processes report. References are weak: unused processes drop out.

    max_bytes: of all processes together; a step may exceed it by one process's growth limit.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._processes: WeakSet[CountedProcess] = WeakSet()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of processes."""
        return len(self._processes)

    @property
    def used_bytes(self) -> int:
        """The memory of all processes together."""
        with self._lock:
            return self._sum()

    def by_owner(self) -> dict[Hashable, OwnerUsage]:
        """The processes and memory of each owner."""
        with self._lock:
            return self._by_owner()

    def add(self, process: CountedProcess) -> None:
        """Count a process from now on."""
        with self._lock:
            self._processes.add(process)

    def forget(self, process: CountedProcess) -> None:
        """Stop counting a process that has ended."""
        with self._lock:
            self._processes.discard(process)

    def check(self) -> None:
        """Above `max_bytes`, end the largest process of the largest owner; from any thread."""
        with self._lock:
            if self._sum() <= self.max_bytes:
                return
            usage = self._by_owner()
            owner = max(usage, key=lambda owner: usage[owner].bytes)
            own = [process for process in self._processes if process.owner == owner]
            largest = max(own, key=_total_bytes)
            self._processes.discard(largest)
        largest.end(
            Overloaded(
                "all regular expressions and schemas together use more memory than "
                "SRUSERVE_MAX_GRAMMAR_BYTES allows, and this one is the largest of the client "
                "that uses most; retry after a moment"
            )
        )

    def _by_owner(self) -> dict[Hashable, OwnerUsage]:
        owners: defaultdict[Hashable, OwnerUsage] = defaultdict(OwnerUsage)
        for process in self._processes:
            usage = owners[process.owner]
            usage.processes += 1
            usage.bytes += _total_bytes(process)
        return owners

    def _sum(self) -> int:
        return sum(_total_bytes(process) for process in self._processes)


def _total_bytes(process: CountedProcess) -> int:
    return PROCESS_BYTES + process.used_bytes
