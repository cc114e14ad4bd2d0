"""Start servers like users do: real processes on free loopback ports."""

import http.client
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import randrange
from time import perf_counter, sleep
from types import TracebackType

from bench.report.machine import ROOT

_POLL_SECONDS = 0.005
_START_SECONDS = 120
_STOP_SECONDS = 30
_EPHEMERAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 10_000
SRUSERVE = (sys.executable, "-c", "from sruserve.cli import main; main()", "serve")


class StartFailed(Exception):
    """A server ended or was not ready in time; the message contains its output."""


class Server:
    """A server process, ready inside a `with` block.

    port: port on 127.0.0.1. start_seconds: from the process's start to its first good reply.
    checkout: the folder of the code that it runs.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[int], Sequence[str]],
        ready: Callable[[int], bool],
        environment: Mapping[str, str] | None = None,
        checkout: Path = ROOT,
    ) -> None:
        self.name, self._command, self._ready = name, command, ready
        self._checkout = checkout
        self._environment = dict(environment or {})
        self.port = 0
        self.start_seconds = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> "Server":
        self.port = free_port()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SRUSERVE_")}
        self._output = tempfile.TemporaryFile("w+")
        begin = perf_counter()
        self._process = subprocess.Popen(
            self._command(self.port),
            cwd=self._checkout,
            env=inherited | self._environment | {"PYTHONPATH": str(self._checkout)},
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        while not self._ready(self.port):
            if self._process.poll() is not None or perf_counter() - begin > _START_SECONDS:
                self._stop()
                self._output.seek(0)
                written = self._output.read()[-2000:]
                self._output.close()
                raise StartFailed(
                    f"{self.name} ended or was not ready within {_START_SECONDS} s; its output:\n"
                    f"{written}"
                )
            sleep(_POLL_SECONDS)
        self.start_seconds = perf_counter() - begin
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        self._output.close()

    def _stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def sruserve(
    name: str,
    folders: Sequence[Path],
    environment: Mapping[str, str] | None = None,
    checkout: Path = ROOT,
) -> Server:
    """Return our server with these models and settings, and defaults for all other settings."""

    def command(port: int) -> list[str]:
        return [*SRUSERVE, *map(str, folders), "--port", str(port)]

    settings = {"SRUSERVE_LOG_LEVEL": "warning", **(environment or {})}
    if "grpc_port" in (checkout / "sruserve" / "server" / "settings.py").read_text():
        settings.setdefault("SRUSERVE_GRPC_PORT", "off")  # an older commit refuses what it lacks
    return Server(name, command, lambda port: answers(port, "GET", "/readyz"), settings, checkout)


@contextmanager
def redis_server() -> Iterator[dict[str, str]]:
    """Run Debian's redis-server, which writes nothing; yields a server's settings for it."""
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen([*command, "--dir", folder], stdout=subprocess.DEVNULL) as process,
    ):
        try:
            yield {
                "SRUSERVE_STORE": f"redis://127.0.0.1:{port}/0",
                "SRUSERVE_STATE_KEYS": "7" * 64,
            }
        finally:
            process.kill()


def answers(port: int, method: str, path: str, body: bytes = b"") -> bool:
    """Whether the server replies to a request with status 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body or None, {"content-type": "application/json"})
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def free_port() -> int:
    """Return a port of 127.0.0.1 that is free now, and that the system gives to no connection."""
    lowest_ephemeral = int(_EPHEMERAL_PORTS.read_text().split()[0])
    while True:
        port = randrange(_LOWEST_PORT, max(lowest_ephemeral, 2 * _LOWEST_PORT))
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
