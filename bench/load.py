"""Load on a server: keep-alive connections that each send their next request after a reply.

`wrk` does it where it is installed, because it takes little of the machine; else our own generator,
in a process of its own. One run uses the same generator for all servers.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.machine import ROOT

_SCRIPT = Path(__file__).with_name("load.lua")
_SPARE_SECONDS = 30


class LoadFailed(Exception):
    """Not every request was answered with 200, so the figures mean nothing."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a server did under load."""

    requests_per_second: float
    p50_ms: float
    p99_ms: float


def generator() -> str:
    """Which load generator is used here."""
    return "wrk" if shutil.which("wrk") else "bench.generator"


def measure(port: int, path: str, bodies: Path, connections: int, seconds: int) -> Load:
    """POST the bodies (a file of one JSON text a line) in turn to 127.0.0.1 for some seconds."""
    command = [sys.executable, "-m", "bench.generator", str(connections), str(seconds)]
    if generator() == "wrk":
        command = ["wrk", "--threads", "1", "--timeout", "10s", "--script", str(_SCRIPT)]
        command += ["--connections", str(connections), "--duration", f"{seconds}s"]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{port}{path}"],
        cwd=ROOT,
        env=os.environ | {"BENCH_BODIES": str(bodies)},
        capture_output=True,
        text=True,
        timeout=seconds + _SPARE_SECONDS,
        check=False,
    )
    if done.returncode:
        raise LoadFailed(f"the load generator failed: {done.stderr or done.stdout}")
    found = json.loads(done.stdout.splitlines()[-1])
    if found["errors"] or not found["requests"]:
        raise LoadFailed(f"{found['errors']} of {found['requests']} requests failed")
    return Load(found["requests"] / found["seconds"], found["p50_ms"], found["p99_ms"])
