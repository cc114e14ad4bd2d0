"""Starts grammar processes: a helper without torch, threads or secrets forks one per grammar."""

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic

import sruserve
from sruserve.server.engine.constrained.wire import COMMAND, FORK
from sruserve.server.errors import NoProcess, Overloaded
from sruserve.server.offload import run_in_thread

_log = logging.getLogger(__name__)

START_SECONDS = 20.0  # to start a process, and first the helper if it does not run

_CODE = """
import sys
sys.path[:] = {paths!r}
import socket
from sruserve.server.engine.constrained.process import run_helper
run_helper(socket.socket(fileno={control}))
"""


class GrammarHost:
    """Starts and kills processes. The first process that is needed starts the helper.

    The helper ends with the server, even a killed one, because its socket closes.

    hang_seconds: after which a helper that starts nothing is replaced.
    """

    def __init__(
        self, hang_seconds: float = START_SECONDS, clock: Callable[[], float] = monotonic
    ) -> None:
        self.hang_seconds, self._clock = hang_seconds, clock
        self._helper: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._lock = threading.Lock()  # held while the helper starts
        # time of the first request since a process last started; 0: there is none
        self._requested_at = 0.0

    @property
    def pid(self) -> int | None:
        """The pid of the helper; None: it was not started, or was closed."""
        return self._helper.pid if self._helper is not None else None

    @property
    def starting(self) -> bool:
        """Whether a process was requested and none has started since."""
        return self._requested_at > 0

    async def fork(self) -> socket.socket:
        """Request a process; returns the server's end of its socket.

        Raises `Overloaded` if no file descriptor is left, or `NoProcess`.
        """
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            _log.error("cannot create a socket for a grammar process: %s", error)
            raise Overloaded(
                "no more processes can be started for regular expressions and schemas; retry "
                "after a moment"
            ) from None
        if self._requested_at and self._clock() - self._requested_at > self.hang_seconds:
            _log.error("the helper for grammars starts no process; replacing it")
            self.close()
        try:
            with theirs:
                await self._request(theirs)
        except BaseException:  # also of a caller that leaves while the helper starts
            ours.close()
            raise
        return ours

    async def _request(self, channel: socket.socket) -> None:
        """Request a process that has one end of a socket; raises `NoProcess`."""
        for _ in range(2):  # the helper may have been killed
            try:
                control = self._running()
                if control is None:
                    control = await run_in_thread("grammars", self._start)
                socket.send_fds(control, [COMMAND.pack(FORK)], [channel.fileno()])
            except (OSError, NoProcess) as error:  # the helper ended, or no thread starts
                _log.error("cannot request a process of the helper for grammars: %s", error)
                self.close()
            else:
                self._requested_at = self._requested_at or self._clock()
                return
        raise NoProcess

    def started(self) -> None:
        """Note that a process of `fork` has started, so that the helper counts as responsive."""
        self._requested_at = 0.0

    def kill(self, pid: int) -> None:
        """Kill a process that `fork` has started, unless it has ended."""
        if self._control is not None:
            try:
                self._control.send(COMMAND.pack(pid))
            except OSError as error:
                _log.error("cannot kill a grammar process: %s", error)
                self.close()

    def close(self) -> None:
        """End the helper. A process that it has forked ends when its own channel closes."""
        self._requested_at = 0.0
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._helper is not None:
            helper, self._helper = self._helper, None
            helper.kill()
            with suppress(RuntimeError):  # no thread: the next `Popen` reaps the helper
                threading.Thread(target=helper.wait, name="grammars' end", daemon=True).start()

    def _running(self) -> socket.socket | None:
        """The socket of the helper, if the helper runs."""
        if self._helper is not None and self._helper.poll() is not None:
            self.close()
        return self._control

    def _start(self) -> socket.socket:
        """Start the helper, on its own thread, unless another thread has started it."""
        with self._lock:
            control = self._running()
            if control is None:
                control, theirs = socket.socketpair()
                control.setblocking(False)  # sends to a hung helper fail, and it is replaced
                with theirs:
                    self._helper = subprocess.Popen(  # noqa: S603 - our own interpreter
                        [sys.executable, "-I", "-S", "-c", _helper_code(theirs.fileno())],
                        pass_fds=[theirs.fileno()],
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        cwd="/",
                        env=_environment(),
                    )
                self._control = control
            return control

    def __del__(self) -> None:
        self.close()


def _helper_code(control: int) -> str:
    root = str(Path(sruserve.__file__).parent.parent)  # `sys.path` lacks an editable install
    paths = [root, *(os.path.abspath(path) for path in sys.path if path)]
    return _CODE.format(paths=paths, control=control)


def _environment() -> dict[str, str]:
    """The helper's variables: those that find libraries and keep numpy from threads, no secrets."""
    names = ("LD_LIBRARY_PATH", "PATH", "LANG", "LC_ALL")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    return environment | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
