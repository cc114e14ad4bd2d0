"""Keep worker processes running until a signal arrives, or until supervision gives up."""

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from sruserve.server.ending import FAILED, STOPPED, heeded
from sruserve.server.metrics.files import EndedWorkers
from sruserve.server.supervision import LOOK_SECONDS, Do, RestartPolicy, Supervision

log = logging.getLogger("sruserve.server")

_spawn = multiprocessing.get_context("spawn")
_STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_PIPE_BYTES = 64 << 10  # the capacity of a pipe, so that one read takes all

Work = Callable[[Callable[[], None]], int]


class Worker:
    """A worker process, and the pipe of its signs of life."""

    def __init__(self, work: Work) -> None:
        self._beats, theirs = _spawn.Pipe(duplex=False)
        self._process = _spawn.Process(target=_run, args=(work, theirs))
        try:
            self._process.start()
        except OSError:
            self._beats.close()
            raise
        finally:
            theirs.close()
        os.set_blocking(self._beats.fileno(), False)
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.sentinel = self._process.sentinel

    @property
    def exit_code(self) -> int | None:
        """Its exit code, or the negative number of the signal that ended it; None: it runs."""
        return self._process.exitcode

    def has_beaten(self) -> bool:
        """Whether there was a sign of life since the last call."""
        try:
            return bool(os.read(self._beats.fileno(), _PIPE_BYTES))
        except BlockingIOError:
            return False

    def send(self, number: int) -> None:
        """Send it a signal if it runs."""
        if self._process.is_alive():
            os.kill(self.pid, number)

    def join(self, seconds: float) -> None:
        """Wait for its end, at most `seconds`."""
        self._process.join(seconds)

    def close(self) -> None:
        """Release the resources of a worker that has ended."""
        self._process.join()
        self._process.close()
        self._beats.close()


class Supervisor:
    """Runs `work` in several processes.

    work: called in each process with a function that gives a sign of life; returns an exit code.
    drain_seconds: the time limit of workers after a signal.
    renew: called on SIGHUP, which is sent on to the workers if it returns true; None: SIGHUP stops.
    """

    def __init__(
        self,
        work: Work,
        workers: int,
        policy: RestartPolicy,
        drain_seconds: float,
        ended: EndedWorkers,
        clock: Callable[[], float] = time.monotonic,
        renew: Callable[[], bool] | None = None,
    ) -> None:
        self._work, self._clock, self._ended = work, clock, ended
        self._supervision = Supervision(workers, policy, clock())
        self._workers: list[Worker | None] = [None] * workers
        self._drain_seconds = drain_seconds
        self._signals: list[int] = []
        self._renew, self._renews = renew, False

    def run(self) -> int:
        """Supervise until a signal, and return the process's exit code."""
        with self._obeying() as woken:
            while not self._signals:
                reason = self._look()
                if reason is not None:
                    log.critical("%s: stopping", reason)
                    self._stop(woken)
                    return FAILED
                self._pass_on_renewal()
                self._wait(woken)
            return self._stop(woken)

    def _look(self) -> str | None:
        """Check each worker once; returns a reason to stop, or None."""
        for place, worker in enumerate(self._workers):
            if worker is not None and worker.has_beaten():
                self._supervision.beat(place)
            if worker is not None and worker.exit_code is not None:
                code = self._bury(place, worker)
                if code == FAILED and not self._supervision.proven:
                    return "a worker could not start"  # its log says why; a retry would fail, too
                wait = self._supervision.ended(place, self._clock())
                delay = f"in {wait:.0f} s" if wait else "now"
                log.error(
                    "worker %s ended with exit code %s: replacing it %s", worker.pid, code, delay
                )
                self._ended.count_restart()
        now = self._clock()
        if (reason := self._supervision.hopeless(now)) is not None:
            return reason
        for place, worker in enumerate(self._workers):
            match self._supervision.look(place, now):
                case Do.START:
                    self._start(place)
                case Do.KILL if worker is not None:
                    log.error("worker %s gives no sign of life: killing it", worker.pid)
                    worker.send(signal.SIGKILL)
        self._ended.move()
        return None

    def _pass_on_renewal(self) -> None:
        """Renew, and let all workers do the same if that is possible."""
        if self._renews and self._renew is not None:
            self._renews = False
            if self._renew():
                self._send(signal.SIGHUP)

    def _start(self, place: int) -> None:
        self._supervision.started(place, self._clock())
        try:
            with _blocked(signal.SIGHUP) if self._renew is not None else nullcontext():
                self._workers[place] = Worker(self._work)
        except OSError as error:  # too few processes or descriptors
            wait = self._supervision.ended(place, self._clock())
            log.error("cannot start a worker: %s; retrying in %.0f s", error, wait)

    def _bury(self, place: int, worker: Worker) -> int | None:
        code = worker.exit_code
        worker.close()
        self._workers[place] = None
        self._ended.add(worker.pid)
        return code

    def _stop(self, woken: int) -> int:
        """Drain all workers, and kill those that take too long."""
        deadline = self._clock() + self._drain_seconds
        obeyed = len(self._signals)
        self._send(signal.SIGTERM)
        while self._living:
            if self._clock() >= deadline:
                log.error("%d workers do not stop: killing them", len(self._living))
                self._send(signal.SIGKILL)
                self._join()
                return FAILED
            self._wait(woken)
            if signal.SIGINT in self._signals[obeyed:]:  # a second Ctrl-C stops the drain
                obeyed = len(self._signals)
                self._send(signal.SIGINT)
        self._join()
        return STOPPED

    @property
    def _living(self) -> list[Worker]:
        return [w for w in self._workers if w is not None and w.exit_code is None]

    def _send(self, number: int) -> None:
        for worker in self._living:
            worker.send(number)

    def _join(self) -> None:
        for worker in self._workers:
            if worker is not None:
                worker.close()

    def _wait(self, woken: int) -> None:
        """Wait until a worker ends or a signal arrives, but not for long."""
        living = self._living
        ready = wait([woken, *(worker.sentinel for worker in living)], LOOK_SECONDS)
        for worker in living:
            if worker.sentinel in ready:
                worker.join(LOOK_SECONDS)  # its files close shortly before its end
        with suppress(BlockingIOError):
            os.read(woken, 4096)

    @contextmanager
    def _obeying(self) -> Iterator[int]:
        """Collect signals; yields a file that is readable when one has arrived."""
        readable, writable = os.pipe()
        for end in (readable, writable):
            os.set_blocking(end, False)
        handlers = {n: signal.signal(n, self._on_signal) for n in _STOP if heeded(n)}
        if self._renew is not None:  # also under `nohup`
            handlers.setdefault(signal.SIGHUP, signal.getsignal(signal.SIGHUP))
            signal.signal(signal.SIGHUP, self._on_renewal)
        waker = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        if self._renew is not None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
        try:
            yield readable
        finally:
            signal.set_wakeup_fd(waker)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for end in (readable, writable):
                os.close(end)

    def _on_signal(self, number: int, _: Any) -> None:
        self._signals.append(number)

    def _on_renewal(self, *_: object) -> None:
        self._renews = True


@contextmanager
def _blocked(number: int) -> Iterator[None]:
    """Start processes in which a signal waits until they are ready for it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(work: Work, beats: Connection) -> None:
    """Run a worker process."""
    # Ctrl-C reaches all processes of a terminal, but a worker obeys only its supervisor.
    os.setpgid(0, 0)
    os.set_blocking(beats.fileno(), False)

    def beat() -> None:
        with suppress(OSError):  # the supervisor is stopped and the pipe is full, or it has ended
            os.write(beats.fileno(), b".")

    raise SystemExit(work(beat))
