"""A process that has imported torch and the server, and forks a process for each program to run.

    python -m tests.preloader FD

FD is one end of a socket, over which `tests.preloaded` asks. A request is a JSON object with
Python's "arguments", the "environment" and the "folder", and four descriptors: the program's
standard streams, and where its wait status goes. The answer is the process's id. This process has
one thread, so that what it forks is whole, and ends with the other end of the socket.
"""

import gc
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any

from tests.forked_workers import fork_workers

MODULES = ("sruserve.server.run", "sruserve.server.app", "torch")
_MAX_BYTES = 1 << 20


def serve(connection: socket.socket) -> Callable[[], None] | None:
    """Fork for each request. In a child, return its program; here, return None at the end."""
    selector = selectors.DefaultSelector()
    selector.register(connection, selectors.EVENT_READ)
    statuses: dict[int, tuple[int, int]] = {}  # of children, by descriptor: the id, where to tell
    while True:
        for key, _ in selector.select():
            if key.fd in statuses:
                selector.unregister(key.fd)
                pid, to = statuses.pop(key.fd)
                with suppress(BrokenPipeError):  # nobody waits for it any more
                    os.write(to, str(os.waitpid(pid, 0)[1]).encode())
                os.close(key.fd)
                os.close(to)
                continue
            message, descriptors, *_ = socket.recv_fds(connection, _MAX_BYTES, 4)
            if not message:
                return None
            *streams, to = descriptors
            pid = os.fork()
            if not pid:
                selector.close()
                connection.close()
                for process, (_, other) in statuses.items():
                    os.close(process)
                    os.close(other)
                os.close(to)
                return prepared(json.loads(message), streams)
            for stream in streams:
                os.close(stream)
            process = os.pidfd_open(pid)
            statuses[process] = pid, to
            selector.register(process, selectors.EVENT_READ)
            connection.send(str(pid).encode())


def prepared(request: dict[str, Any], streams: list[int]) -> Callable[[], None]:
    """The program of a request, in a process that is as one that was started with it."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", errors="backslashreplace", buffering=1, closefd=False)
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    tempfile.tempdir = None  # the environment says it
    os.chdir(request["folder"])
    first, *rest = request["arguments"]
    path = {"-m": os.getcwd(), "-c": ""}.get(first, os.path.dirname(first))
    sys.path[:0] = [path, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [first, *rest[first in ("-c", "-m") :]]
    fork_workers()

    def program() -> None:
        if first == "-m":
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif first == "-c":
            sys.modules["__main__"] = module = ModuleType("__main__")
            exec(compile(rest[0], "<string>", "exec"), vars(module))
        else:
            runpy.run_path(first, run_name="__main__")

    return program


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    for name in MODULES:
        import_module(name)
    gc.collect()
    gc.freeze()  # so that children share it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with those who ask
    program = serve(connection)
    if program is not None:
        program()


if __name__ == "__main__":
    main()
