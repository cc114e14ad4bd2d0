"""Processes for grammars: a helper without torch, threads or secrets forks one for each."""

import logging
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from time import monotonic

import sruserve
from sruserve.server.engine.wire import COMMAND, FORK
from sruserve.server.errors import NoProcess, Overloaded
from sruserve.server.offload import in_own_thread

_log = logging.getLogger(__name__)

START_SECONDS = 20.0  # until a process is there; the helper, too, may have to be started

_CODE = """
import sys
sys.path[:] = {paths!r}
import socket
from sruserve.server.engine.grammar_process import help_server
help_server(socket.socket(fileno={control}))
"""


class GrammarHost:
    """Starts processes, and kills them. The helper is started when it is first needed.

    It ends with the server, however that ends, because the other end of its socket does.
    """

    def __init__(self) -> None:
        self._helper: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._lock = threading.Lock()  # of those that start it
        self._asked_at = 0.0  # for the first process since the last one that started; 0: for none

    @property
    def pid(self) -> int | None:
        """The helper's process, if it runs."""
        return self._helper.pid if self._helper is not None else None

    @property
    def asked(self) -> bool:
        """Whether a process was asked for, and none has started since."""
        return self._asked_at > 0

    async def fork(self) -> socket.socket:
        """Ask for a process; returns our end of its socket.

        Raises `Overloaded` if no descriptor is left, or `NoProcess`.
        """
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            _log.error("no socket for a grammar's process: %s", error)
            raise Overloaded(
                "no more processes can be started for regular expressions and schemas; retry "
                "after a moment"
            ) from None
        if self._asked_at and monotonic() - self._asked_at > START_SECONDS:
            _log.error("the helper for grammars starts no process; it is replaced")
            self.close()
        with theirs:
            for _ in range(2):  # the helper may have been killed
                try:
                    control = self._running()
                    if control is None:
                        control = await in_own_thread("grammars", self._start)
                    socket.send_fds(control, [COMMAND.pack(FORK)], [theirs.fileno()])
                    self._asked_at = self._asked_at or monotonic()
                    return ours
                except (OSError, NoProcess) as error:  # it is gone; no thread can be started
                    _log.error("the helper for grammars cannot be asked: %s", error)
                    self.close()
        ours.close()
        raise NoProcess

    def started(self) -> None:
        """A process that `fork` asked for is there, so the helper does not hang."""
        self._asked_at = 0.0

    def kill(self, pid: int) -> None:
        """End a process that `fork` has started, if it has not ended."""
        if self._control is not None:
            try:
                self._control.send(COMMAND.pack(pid))
            except OSError as error:
                _log.error("a grammar's process cannot be ended: %s", error)
                self.close()

    def close(self) -> None:
        """End the helper and all of its processes that wait for something to do."""
        self._asked_at = 0.0
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._helper is not None:
            helper, self._helper = self._helper, None
            helper.kill()
            with suppress(RuntimeError):  # no thread: who starts another one waits for it
                threading.Thread(target=helper.wait, name="grammars' end", daemon=True).start()

    def _running(self) -> socket.socket | None:
        """The socket of the helper, if that runs."""
        if self._helper is not None and self._helper.poll() is not None:
            self.close()
        return self._control

    def _start(self) -> socket.socket:
        """Start the helper, on a thread; another one may have done so."""
        with self._lock:
            control = self._running()
            if control is None:
                control, theirs = socket.socketpair()
                control.setblocking(False)  # a helper that hangs is replaced
                with theirs:
                    self._helper = subprocess.Popen(  # noqa: S603 - our own interpreter
                        [sys.executable, "-I", "-S", "-c", _code(theirs.fileno())],
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


def _code(control: int) -> str:
    root = str(Path(sruserve.__file__).parent.parent)  # an editable install is not on the path
    paths = [root, *(os.path.abspath(path) for path in sys.path if path)]
    return _CODE.format(paths=paths, control=control)


def _environment() -> dict[str, str]:
    """None of the server's secrets; what finds libraries, and what keeps numpy from threads."""
    kept = ("LD_LIBRARY_PATH", "PATH", "LANG", "LC_ALL")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    return environment | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
