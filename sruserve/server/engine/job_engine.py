"""A thread that answers jobs on one model until it is drained."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from weakref import proxy

import torch

from sruserve.kernels.devices import finish_work, use_own_stream
from sruserve.kernels.oom import is_out_of_memory
from sruserve.server.engine.admission_queue import AdmissionQueue
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.job import Job
from sruserve.server.engine.metrics import Metrics
from sruserve.server.engine.result_dispatcher import ResultDispatcher
from sruserve.server.errors import (
    Draining,
    EmptyInput,
    EngineFailure,
    NoProcess,
    OutOfDeviceMemory,
    ServeError,
    faults,
)

_log = logging.getLogger(__name__)
_numbers = count()


class JobEngine:
    """What all engines have in common: admission, their thread's life, a drain, and its end.

    number: unique among all engines of this process, past ones included.

    Event loops submit jobs. Each loop gets all of its results of a step in one call. Subclasses
    say what a turn of the thread does.

    clock: monotonic seconds, on which jobs are submitted and have deadlines.
    report_seconds: between two reports of what is held, which take a tenth of a small step.
    """

    what = "an engine"
    report_seconds = 0.05

    def __init__(
        self,
        name: str,
        device: torch.device,
        config: EngineConfig,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._device, self._config, self._metrics = name, device, config, metrics
        self._clock = clock
        self.number = next(_numbers)
        self._admission_queue = AdmissionQueue(config, clock)
        self._dispatcher = ResultDispatcher(self._admission_queue.drop)
        # A proxy, not `self._end`: a reference cycle would keep the memory of a discarded engine.
        self._end_job = partial(type(self)._end, proxy(self))
        self._warm, self._draining = threading.Event(), False
        self.turns = 0
        self._logged = set[str]()  # failures of this turn
        self._failure: BaseException | None = None
        self._deadline = float("inf")
        self._continuing = 0  # see `continuing`
        self._continuing_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"engine {name}", daemon=True)

    @property
    def waiting(self) -> int:
        """Requests whose input is not consumed yet."""
        return self._admission_queue.queued

    @property
    def running(self) -> int:
        """Sequences without a last result."""
        raise NotImplementedError

    @property
    def state_limits(self) -> dict[str, int]:
        """The bytes of states that each tier of memory can hold."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the thread, and block until the model is warm.

        Raises `EngineFailure`, or `NoProcess` where no thread can be started.
        """
        try:
            self._thread.start()
        except RuntimeError:
            raise NoProcess from None
        self._warm.wait()
        if self._failure is not None:
            raise EngineFailure(
                f"{self._name} does not run: {self._failure}; correct that, and load it again"
            ) from self._failure

    @property
    def alive(self) -> bool:
        """Whether the engine serves, or was asked to end."""
        return self._thread.is_alive() or self._draining

    @property
    def ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return not self._thread.is_alive()

    @property
    def busy(self) -> bool:
        """Whether there is work; while there is, `turns` grows."""
        return self.waiting > 0 or self.running > 0

    def drain(self, timeout: float) -> None:
        """Admit no more jobs; fail jobs that are not done in `timeout` seconds. Returns at once."""
        self._deadline = self._clock() + timeout
        self._draining = True
        self._admission_queue.wake()

    def stop(self, timeout: float) -> None:
        """Drain, and wait until the thread ends."""
        self.drain(timeout)
        if self._thread.is_alive():
            self._thread.join()

    def check_admission(self, cost: int, tenant: Hashable = None) -> None:
        """Raise `Overloaded` or `Draining` if a tenant's job of `cost` bytes would be refused."""
        if self._draining:
            raise Draining("the server is stopping; retry on another replica")
        self._admission_queue.check(cost, tenant)

    @contextmanager
    def continuing(self) -> Iterator[None]:
        """The block's work takes several jobs, one after another; from any thread.

        While it lasts, a draining engine waits for its next job, until the drain's time is over.
        """
        with self._continuing_lock:
            self._continuing += 1
        try:
            yield
        finally:
            with self._continuing_lock:
                self._continuing -= 1

    def submit(self, job: Job) -> None:
        """Admit a job, or raise a `ServeError` at once."""
        if self._draining and not job.continues:
            raise Draining("the server is stopping; retry on another replica")
        if not job.items:
            raise EmptyInput("the request has no inputs: send at least one")
        self._check(job)
        job.submitted = self._clock()
        if not (job.alone and self._answered_here(job)):
            self._admission_queue.submit(job)

    def _answered_here(self, job: Job) -> bool:
        """Answer a job on its event loop, which calls; False: it has to be queued."""
        del job
        return False

    def _check(self, job: Job) -> None:
        """Raise a `ServeError` for a job that the model cannot compute."""

    def _warm_up(self) -> None:
        """Prepare the model for its first job."""
        raise NotImplementedError

    def _run_once(self) -> None:
        """Take one turn; waits for a job if there is none. After the deadline, end all jobs."""
        raise NotImplementedError

    def _has_jobs(self) -> bool:
        """Whether any job is left."""
        raise NotImplementedError

    def _jobs(self) -> Iterable[Job]:
        """All jobs that have arrived and are not done."""
        raise NotImplementedError

    def _end(self, job: Job, error: ServeError | None) -> None:
        """End a job early: free what it has, and tell a client that is still there."""
        raise NotImplementedError

    def _discard(self) -> None:
        """Forget what was launched and not settled, before all jobs end."""

    def _close(self) -> None:
        """Wait for what still uses the device, after the last job."""

    @torch.inference_mode()
    def _run(self) -> None:
        """Serve until stopped. A failure ends the current jobs, never the loop."""
        try:
            use_own_stream(self._device)
            self._warm_up()
        except faults() as error:
            _log.exception("%s failed to warm up", self._name)
            self._failure = error
            finish_work(self._device)
            return
        finally:
            self._warm.set()
        while not (self._draining and self._is_done()):
            try:
                self._take_turn(self._run_once)
            except DeviceLost:
                self._give_up()
                return
        self._admission_queue.close()
        self._discard()
        self._end_all(Draining("the server is stopping; retry on another replica"))
        self._close()
        # The engine's memory was allocated on other streams, whose next work gets it.
        finish_work(self._device)
        self._dispatcher.flush()
        self._metrics.ended()

    def _take_turn(
        self, turn: Callable[[], object], here: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Run a turn, and deliver its results, if not later; after a failure, all jobs end.

        here: the event loop that runs it; None: the engine's thread does. Raises `DeviceLost`.
        """
        self._logged.clear()
        try:
            turn()
        except DeviceLost:
            raise
        except faults():
            _log.exception("the engine of %s failed", self._name)
            self._discard()
            self._end_all(
                EngineFailure(
                    "the engine failed; send the request again; the server's log has the reason"
                )
            )
        if here is not None or not self._delivers_later():
            self._dispatcher.flush(here)
        self.turns += 1

    def _delivers_later(self) -> bool:
        """Whether the next turn begins at once, and delivers the results of this one."""
        return False

    def _is_done(self) -> bool:
        """Whether nothing is left to do before the drain ends."""
        waits = self._continuing and self._clock() < self._deadline
        return not (waits or self._has_jobs())

    def _give_up(self) -> None:
        """End without using the device again. Probes then fail, so the process gets restarted."""
        _log.critical(
            "%s no longer responds: %s serves nothing until this process is restarted",
            self._device,
            self._name,
        )
        self._admission_queue.close()
        for job in self._jobs():
            self._dispatcher.add_error(
                job, EngineFailure("the device failed; retry on another replica")
            )
        self._dispatcher.flush()

    def _end_all(self, error: ServeError) -> None:
        for job in list(self._jobs()):
            self._end(job, error)

    def _as_serve_error(self, error: BaseException) -> ServeError:
        """Log the failure of a step, and return the error for its jobs.

        A turn logs equal failures once: it may try each of hundreds of sentences alone.

        Raises `DeviceLost` if the device no longer responds.
        """
        failure = repr(error)
        is_new = failure not in self._logged
        self._logged.add(failure)
        if is_out_of_memory(error):
            if is_new:
                _log.warning("a step of %s ran out of memory: %s", self._name, error)
            return OutOfDeviceMemory()
        if is_new:
            _log.error("a step of %s failed", self._name, exc_info=error)
        if not finish_work(self._device):
            raise DeviceLost from error
        return EngineFailure(
            "the model failed on this batch; ask the operator for the reason in the server's log"
        )


class DeviceLost(Exception):
    """A device fault, after which the device no longer responds to this process."""
