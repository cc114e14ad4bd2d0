"""Processes in which torch and the server are imported already, so that they start at once.

For tests of what a process does after its start. Those of the start itself use `subprocess`.
"""

import atexit
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from time import monotonic
from typing import TextIO

ROOT = Path(__file__).parent.parent
_asking = Lock()


@cache
def _preloader() -> socket.socket:
    """The socket of the process that forks others: `tests.preloader`. One for all tests here."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.preloader", str(theirs.fileno())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def stop() -> None:
        ours.close()
        process.wait()

    atexit.register(stop)
    return ours


class Preloaded:
    """A process that runs Python's `arguments`: -m or -c and what follows it, or a file's path.

    streams: descriptors of its standard input, output and errors, which stay the caller's.
    stdout: what it writes, if `reading` has made it. The rest is as of `subprocess.Popen`.
    """

    def __init__(
        self,
        *arguments: str,
        streams: tuple[int, int, int],
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.returncode: int | None = None
        self.stdout: TextIO | None = None
        self._arguments = arguments
        request = {
            "arguments": arguments,
            "environment": dict(os.environ if environment is None else environment),
            "folder": os.fspath(folder or os.getcwd()),
        }
        self._status, to = os.pipe()
        try:
            with _asking:
                message = json.dumps(request).encode()
                socket.send_fds(_preloader(), [message], [*streams, to])
                self.pid = int(_preloader().recv(20))
        finally:
            os.close(to)

    @classmethod
    def reading(
        cls, *arguments: str, environment: Mapping[str, str], errors: int | None = None
    ) -> "Preloaded":
        """Start a process whose output is its `stdout`, and so are its errors, in good order.

        errors: another descriptor for its errors, which stays the caller's.
        """
        begin, end = os.pipe()
        with open(os.devnull) as nothing:
            streams = (nothing.fileno(), end, end if errors is None else errors)
            try:
                process = cls(*arguments, streams=streams, environment=environment)
            finally:
                os.close(end)
        process.stdout = os.fdopen(begin)
        return process

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self._read_status()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self._arguments, timeout or 0)
            self._read_status()
        assert self.returncode is not None
        return self.returncode

    def _read_status(self) -> None:
        self.returncode = os.waitstatus_to_exitcode(int(os.read(self._status, 20)))
        os.close(self._status)

    def communicate(self, timeout: float) -> tuple[str, None]:
        """Return the rest of what it writes, once it has ended. There is no input."""
        assert self.stdout is not None
        until, output = monotonic() + timeout, b""
        while not self.stdout.closed:
            if not select.select([self.stdout], [], [], max(0, until - monotonic()))[0]:
                raise subprocess.TimeoutExpired(self._arguments, timeout)
            some = os.read(self.stdout.fileno(), 1 << 16)
            output += some
            if not some:
                self.stdout.close()
        self.wait(max(0, until - monotonic()))
        return output.decode(), None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    text: str = "",
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, with `text` as its input; see `Preloaded`."""
    with TemporaryFile("w+") as stdin, TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        stdin.write(text)
        stdin.seek(0)
        streams = (stdin.fileno(), output.fileno(), errors.fileno())
        process = Preloaded(*arguments, streams=streams, environment=environment, folder=folder)
        try:
            process.wait(timeout)
        finally:
            process.kill()
        output.seek(0)
        errors.seek(0)
        assert process.returncode is not None
        return subprocess.CompletedProcess(
            arguments, process.returncode, output.read(), errors.read()
        )


def command(file: Path, *arguments: str) -> int:
    """Make a program of `file` that runs Python's `arguments`, and its own, in such a process.

    Returns a descriptor that whoever runs the program lets it inherit.
    """
    descriptor = _preloader().fileno()
    client = Path(__file__).with_name("preloaded_command.py")
    words = (sys.executable, "-IS", str(client), str(descriptor), *arguments)
    file.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    file.chmod(0o755)
    return descriptor
