"""Servers for one run: with two workers whose held streams are in Redis, or with one worker."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from deploy.grafana.live.load import CLASSIFIER, WRITER
from sruserve.model.bundled import BUNDLED

_MODELS = (BUNDLED / CLASSIFIER, BUNDLED / WRITER)
_SETTINGS = {
    "SRUSERVE_THREADS": "1",
    "SRUSERVE_PORT": "0",
    "SRUSERVE_GRPC_PORT": "off",
    "SRUSERVE_LOG_FORMAT": "text",
    "SRUSERVE_STATE_KEYS": "a" * 64,
    "SRUSERVE_MAX_QUEUE_REQUESTS": "16",  # short, so that a crowd is refused
    "SRUSERVE_STATE_POOL_BYTES": str(4 << 20),
    "SRUSERVE_STATE_HOST_BYTES": str(16 << 20),
    "SRUSERVE_STREAM_IDLE_SECONDS": "20",
}


@contextmanager
def serving(redis_port: int | None = None) -> Iterator[str]:
    """The address of a server with two of the bundled models that is ready.

    redis_port: of the store of its streams, which two workers share; None: one worker has them.
    """
    settings = dict(_SETTINGS)
    if redis_port is not None:
        settings["SRUSERVE_STORE"] = f"redis://127.0.0.1:{redis_port}"
        settings["SRUSERVE_WORKERS"] = "2"
    process = subprocess.Popen(
        [sys.executable, "-m", "sruserve", "serve", *map(str, _MODELS)],
        env=os.environ | settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        while not (address := re.search(r"http://[^ \n]+", line := process.stdout.readline())):
            assert line, "the server ended before it listened"
        while not _is_ready(address[0]):
            assert process.poll() is None, "the server ended before it was ready"
            time.sleep(0.05)
        yield address[0]
    finally:
        process.terminate()
        process.communicate(timeout=60)


@contextmanager
def redis(program: str, port: int, folder: Path) -> Iterator[None]:
    """A Redis that keeps nothing."""
    command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    process = subprocess.Popen([*command, "--save", "", "--logfile", str(folder / "redis.log")])
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def _is_ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
