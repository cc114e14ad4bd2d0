"""Servers in processes of their own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.server.observing import until

COMPLETE = "/v1/completions"
SRUSERVE = ("-m", "sruserve")


Process = subprocess.Popen[str]


def start(
    *arguments: str, limit: str = "", program: Sequence[str] = SRUSERVE, **settings: str
) -> Process:
    """limit: of the process, as `ulimit` takes it. program: Python's arguments."""
    command = [sys.executable, *program, "serve", *arguments]
    if limit:
        command = ["sh", "-c", f'ulimit {limit} && exec "$@"', "sh", *command]
    variables = {f"SRUSERVE_{name.upper()}": value for name, value in settings.items()}
    return subprocess.Popen(
        command,
        env=os.environ | {"SRUSERVE_PORT": "0", "SRUSERVE_STATE_POOL_BYTES": "1000000"} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@contextmanager
def serving(
    *folders: Path, limit: str = "", program: Sequence[str] = SRUSERVE, **settings: str
) -> Iterator[tuple[httpx.Client, Process]]:
    """A server process, ready; it is killed at the end if it has not stopped."""
    process = start(*map(str, folders), limit=limit, program=program, **settings)
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
    while not (said := re.search(r"gRPC is on \S+ port (\d+)", line := process.stdout.readline())):
        assert line, "the server ended before it said its port"
    return int(said[1])


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
