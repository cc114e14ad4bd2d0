"""Load on a server: keep-alive connections that each send their next request after a reply.

The generator is `wrk` if it is installed, because it uses little of the machine; otherwise our own,
in a separate process. One run uses the same generator for all servers.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.report.machine import ROOT

_SCRIPT = Path(__file__).with_name("load.lua")
_SPARE_SECONDS = 30


class LoadFailed(Exception):
    """Not every request got status 200, so the figures mean nothing."""


@dataclass(frozen=True, slots=True)
class Load:
    """A server's throughput and latency under load."""

    requests_per_second: float
    p50_ms: float
    p99_ms: float


def generator() -> str:
    """Return the name of the load generator on this machine."""
    return "wrk" if shutil.which("wrk") else "bench.serve.generator"


def measure(port: int, path: str, bodies: Path, connections: int, seconds: int) -> Load:
    """POST the bodies in turn to 127.0.0.1 for some seconds.

    bodies: a file with one JSON text per line.

    Raises `LoadFailed`.
    """
    command = [sys.executable, "-m", "bench.serve.generator", str(connections), str(seconds)]
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
    result = json.loads(done.stdout.splitlines()[-1])
    if result["errors"] or not result["requests"]:
        raise LoadFailed(f"{result['errors']} of {result['requests']} requests failed")
    return Load(result["requests"] / result["seconds"], result["p50_ms"], result["p99_ms"])
