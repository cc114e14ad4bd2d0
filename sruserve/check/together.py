"""Requests that begin at the same moment, each in a thread."""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from sruserve.check.errors import CheckError

T = TypeVar("T")
Job = Callable[[Callable[[], None]], T]


class _Runner(Generic[T]):
    """A thread's job, and its result or error."""

    def __init__(self, job: Job[T], barrier: threading.Barrier) -> None:
        self._job, self._barrier = job, barrier
        self.results: list[T] = []
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="check", daemon=True)

    def _run(self) -> None:
        try:
            self.results.append(self._job(self._ready))
        except BaseException as error:
            self.error = error
        finally:
            self._barrier.abort()  # a job that ended early must not block the others

    def _ready(self) -> None:
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            return


def at_once(jobs: Sequence[Job[T]], limit: int) -> list[T]:
    """Run jobs, at most `limit` at a time, and return their results in order.

    A job gets a function that it calls when its connection is open; the call returns once all jobs
    of its group have called theirs. Raises the first error of a job, after all have ended.
    """
    results: list[T] = []
    for start in range(0, len(jobs), limit):
        group = jobs[start : start + limit]
        barrier = threading.Barrier(len(group))
        runners = [_Runner(job, barrier) for job in group]
        for runner in runners:
            runner.thread.start()
        for runner in runners:
            runner.thread.join()
        errors = [runner.error for runner in runners if runner.error is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, CheckError)):
            raise error
        results += [result for runner in runners for result in runner.results]
    return results
