"""The resources of a server's processes during an attack: memory, descriptors, threads."""

from dataclasses import dataclass
from time import monotonic

import psutil


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of one process: resident bytes, descriptors, threads."""

    at: float
    pid: int
    resident: int
    descriptors: int
    threads: int


class Watch:
    """Reads the resources of a supervisor's live workers."""

    def __init__(self, supervisor: int) -> None:
        self._supervisor = psutil.Process(supervisor)
        self.readings: list[Reading] = []

    def workers(self) -> list[psutil.Process]:
        """Return the live workers, oldest first."""
        children = self._supervisor.children()
        serving = [each for each in children if _serves(each)]
        return sorted(serving, key=lambda each: each.create_time())

    def look(self) -> None:
        """Record the resources of each worker."""
        for worker in self.workers():
            try:
                with worker.oneshot():
                    self.readings.append(
                        Reading(
                            monotonic(), worker.pid, worker.memory_info().rss, worker.num_fds(),
                            worker.num_threads(),
                        )
                    )  # fmt: skip
            except psutil.Error:
                continue  # it was killed just now

    def of_oldest(self) -> list[Reading]:
        """Return the readings of the oldest worker, which lives for the whole run."""
        oldest = self.readings[0].pid
        return [each for each in self.readings if each.pid == oldest]


def _serves(process: psutil.Process) -> bool:
    try:
        alive = process.status() != psutil.STATUS_ZOMBIE
        return bool(alive and "spawn_main" in " ".join(process.cmdline()))
    except psutil.Error:
        return False
