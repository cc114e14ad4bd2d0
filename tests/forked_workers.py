"""Workers of a preloaded process: forked from it, and otherwise as `multiprocessing` spawns them.

The supervisor is no process that computes, so that a fork of it has imported torch and is whole.
Like an interpreter that was started, it knows no more of the supervisor than it is sent: it imports
the server anew, and has the supervisor's environment, but neither its files nor its handlers.
"""

import atexit
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import util
from types import ModuleType
from typing import Any

_ANEW = ("sruserve", "prometheus_client")  # the latter reads the environment at its import

_start = util.spawnv_passfds


def fork_workers() -> None:
    """Let `multiprocessing` fork this process where it would start an interpreter for a worker."""
    util.spawnv_passfds = _fork


def _fork(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
    """As `spawnv_passfds`: the process's id. It inherits those descriptors alone."""
    *_, option, code, last = args
    if option != "-c" or "spawn_main" not in code:  # the resource tracker
        return _start(path, args, passfds)
    sys.stdout.flush()
    sys.stderr.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    if not (pid := os.fork()):
        sys.argv = [option, last]
        _run(code, passfds, before)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def _run(code: str, passed: Sequence[int], mask: set[int | signal.Signals]) -> None:
    status: object = 1
    try:
        _forget(passed)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        exec(code, {"__name__": "__main__"})
    except SystemExit as end:
        status = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # also where nobody reads what it writes: else it would go on as its supervisor
            os._exit(status if isinstance(status, int) else 1)


def _forget(passed: Sequence[int]) -> None:
    """Forget what an interpreter does not inherit."""
    atexit._clear()
    atexit.register(logging.shutdown)  # as at its import, so that no line is lost at the end
    signal.set_wakeup_fd(-1, warn_on_full_buffer=False)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            interrupts = number == signal.SIGINT
            signal.signal(number, signal.default_int_handler if interrupts else signal.SIG_DFL)
    for descriptor in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *passed}:
        with suppress(OSError):  # that of the list itself
            os.close(descriptor)
    logging.root.handlers.clear()
    logging._handlerList.clear()  # type: ignore[attr-defined]
    for name in [name for name in sys.modules if name.partition(".")[0] in _ANEW]:
        del sys.modules[name]
    sys.modules["__main__"] = ModuleType("__main__")
