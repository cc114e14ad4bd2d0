"""What a server's processes take while it is attacked: memory, descriptors, threads."""

from dataclasses import dataclass
from time import monotonic

import psutil


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at one process: resident bytes, descriptors, threads."""

    at: float
    pid: int
    resident: int
    descriptors: int
    threads: int


class Watch:
    """Looks at a supervisor's workers, the ones that live now."""

    def __init__(self, supervisor: int) -> None:
        self._supervisor = psutil.Process(supervisor)
        self.readings: list[Reading] = []

    def workers(self) -> list[psutil.Process]:
        """The workers, the oldest first: children with engines' threads, and so with many."""
        children = self._supervisor.children()
        found = [each for each in children if _serves(each)]
        return sorted(found, key=lambda each: each.create_time())

    def look(self) -> None:
        """Note what each worker takes."""
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
        """The readings of the worker that lived all the time."""
        oldest = self.readings[0].pid
        return [each for each in self.readings if each.pid == oldest]


def _serves(process: psutil.Process) -> bool:
    try:
        alive = process.status() != psutil.STATUS_ZOMBIE
        return bool(alive and "spawn_main" in " ".join(process.cmdline()))
    except psutil.Error:
        return False
