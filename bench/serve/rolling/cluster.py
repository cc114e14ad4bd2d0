"""Three replicas, a Redis that holds their streams, and HAProxy before them, on loopback."""

import csv
import multiprocessing
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Self

from bench.report.machine import ROOT
from bench.serve.models import CLASSIFIER, LANGUAGE_MODEL
from bench.serve.processes import free_port
from bench.serve.rolling import replica

NAMES = ("one", "two", "three")
STATE_KEY = "5" * 64
_CONFIG = ROOT / "deploy" / "haproxy.cfg"
_POLL_SECONDS, _TIMEOUT_SECONDS = 0.05, 120
PROGRAMS = ("haproxy", "redis-server")


class Replica:
    """A server process that can be stopped, and started again on its ports."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        self.name, self.port, self.grpc_port = name, free_port(), free_port()
        ports = {"port": self.port, "grpc_port": self.grpc_port}
        self._settings = settings | ports
        self._process: ForkServerProcess | None = None

    def start(self) -> None:
        # The parent of all replicas has imported torch once, which takes seconds.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([replica.__name__])
        self._process = context.Process(target=replica.serve, args=(self._settings,), daemon=True)
        self._process.start()

    def stop(self) -> int | None:
        """Send SIGTERM, and return the exit code."""
        assert self._process is not None
        self._process.terminate()
        self._process.join(_TIMEOUT_SECONDS)
        return self._process.exitcode

    def kill(self) -> None:
        if self._process is not None and self._process.is_alive():
            self._process.kill()
            self._process.join()

    def is_generating(self) -> bool:
        """Whether it computes a completion at the moment."""
        text = _get(f"http://127.0.0.1:{self.port}/metrics") or ""
        running = re.search(r'^sru_running\{model="shakespeare"\} (\d+)', text, re.M)
        return running is not None and running[1] != "0"

    @property
    def ready(self) -> bool:
        return _get(f"http://127.0.0.1:{self.port}/readyz") is not None


class Cluster:
    """Runs inside a `with` block; each port is free and on 127.0.0.1.

    port, grpc_port: of HAProxy.
    """

    def __init__(self, folder: Path, drain_seconds: int, threads: int = 1) -> None:
        self._folder = folder
        self._redis_port, self.port, self.grpc_port = free_port(), free_port(), free_port()
        settings = {
            "model_folders": (CLASSIFIER, LANGUAGE_MODEL),
            "threads": threads,
            "drain_seconds": drain_seconds,
            "state_keys": STATE_KEY,
            "state_pool_bytes": 8 << 20,
            "store": f"redis://127.0.0.1:{self._redis_port}/0",
            "log_level": "warning",
        }
        self.replicas = [Replica(name, settings) for name in NAMES]
        self._haproxy: subprocess.Popen[bytes] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            redis = ["--port", str(self._redis_port), "--bind", "127.0.0.1"]
            self._run("redis-server", *redis, "--dir", str(self._folder), "--save", "")
            for each in self.replicas:
                self._stack.callback(each.kill)
                each.start()
            wait_until(lambda: all(each.ready for each in self.replicas), "the replicas are ready")
            config = self._folder / "haproxy.cfg"
            config.write_text(self._config())
            self._haproxy = self._run("haproxy", "-f", str(config))
            wait_until(self.all_up, "HAProxy has found the replicas")
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def all_up(self) -> bool:
        """Whether HAProxy sends requests to every replica, over HTTP and gRPC."""
        log = self._folder / "haproxy.log"
        assert self._haproxy is not None
        assert self._haproxy.poll() is None, f"HAProxy has ended: {log.read_text()}"
        try:
            with socket.socket(socket.AF_UNIX) as control:
                control.connect(str(self._folder / "admin.sock"))
                control.sendall(b"show stat\n")
                text = b"".join(iter(lambda: control.recv(1 << 16), b"")).decode()
        except OSError:
            return False
        rows = csv.DictReader(text.removeprefix("# ").splitlines())
        states = [row["status"] for row in rows if row["svname"] in NAMES]
        return len(states) == 2 * len(NAMES) and set(states) <= {"UP", "no check"}

    def _config(self) -> str:
        """Return deploy/haproxy.cfg with the addresses of this cluster."""
        text = _CONFIG.read_text()
        for place, each in enumerate(self.replicas, 1):
            text = text.replace(f"10.0.0.{place}:8001", f"127.0.0.1:{each.grpc_port}")
            text = text.replace(f"10.0.0.{place}:8000", f"127.0.0.1:{each.port}")
        text = text.replace("127.0.0.1:8080", f"127.0.0.1:{self.port}")
        text = text.replace("127.0.0.1:8081", f"127.0.0.1:{self.grpc_port}")
        text = text.replace("127.0.0.1:8404", f"127.0.0.1:{free_port()}")
        return text.replace("/run/haproxy", str(self._folder))

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        path = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
        assert path is not None, f"{program} is not installed"
        with (self._folder / f"{program}.log").open("w") as log:
            process = subprocess.Popen([path, *arguments], stdout=log, stderr=subprocess.STDOUT)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait for what becomes true; raises `TimeoutError`."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {_TIMEOUT_SECONDS} s")
        time.sleep(_POLL_SECONDS)


def _get(url: str) -> str | None:
    """The text of a good reply."""
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            text: str = reply.read().decode()
            return text
    except (OSError, urllib.error.HTTPError):
        return None
