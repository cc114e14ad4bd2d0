"""Servers in processes of their own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.preloaded import Preloaded
from tests.server.observing import until

COMPLETE = "/v1/completions"
SRUSERVE = ("-m", "sruserve")


Process = subprocess.Popen[str] | Preloaded


def start(*arguments: str, program: Sequence[str] = SRUSERVE, **settings: str) -> Process:
    """A new interpreter, and so are its workers. program: Python's arguments."""
    return subprocess.Popen(
        [sys.executable, *program, "serve", *arguments],
        env=_environment(settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    variables = {f"SRUSERVE_{name.upper()}": value for name, value in settings.items()}
    few = {"SRUSERVE_PORT": "0", "SRUSERVE_STATE_POOL_BYTES": "1000000"}
    return dict(os.environ) | few | variables


def limited(kind: int, limit: int) -> Sequence[str]:
    """The server as a program, as `ulimit` starts it. kind: of `resource`."""
    limits = f"import resource; resource.setrlimit({kind}, ({limit}, {limit}))"
    return "-c", f"{limits}\nfrom sruserve.cli import main; main()"


def serving(
    *folders: Path, program: Sequence[str] = SRUSERVE, **settings: str
) -> AbstractContextManager[tuple[httpx.Client, Process]]:
    """A server process, ready; it is killed at the end if it has not stopped.

    It has imported torch already, and so have its workers.
    """
    return ready(preloaded(*map(str, folders), program=program, **settings))


def preloaded(*arguments: str, program: Sequence[str] = SRUSERVE, **settings: str) -> Preloaded:
    """As `start`, but for a process that has imported torch, and is one."""
    return Preloaded.reading(*program, "serve", *arguments, environment=_environment(settings))


@contextmanager
def ready(process: Process) -> Iterator[tuple[httpx.Client, Process]]:
    """A server process, once it is ready; it is killed at the end if it has not stopped."""
    try:
        assert process.stdout is not None
        while not (address := re.search("https?://[^ \n]+", line := process.stdout.readline())):
            assert line, "the server ended before it listened"
        with httpx.Client(base_url=address[0], timeout=60, verify=False) as client:
            until(lambda: is_ready(client), 300)
            yield client, process
    finally:
        process.kill()  # workers notice, and end too
        process.communicate(timeout=300)


def grpc_port_of(process: Process) -> int:
    """The port that a process that is `serving` has said."""
    assert process.stdout is not None
    while not (match := re.search(r"gRPC is on \S+ port (\d+)", line := process.stdout.readline())):
        assert line, "the server ended before it said its port"
    return int(match[1])


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def ended(process: Process) -> str:
    """What the process wrote until it ended, in good order."""
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert "Traceback" not in output
    return output


def complete(client: httpx.Client, **body: Any) -> dict[str, Any]:
    reply = client.post(COMPLETE, json=body)
    assert reply.status_code == 200, reply.text
    first_choice: dict[str, Any] = reply.json()["choices"][0]
    return first_choice
