"""How long the longest requests hold up everybody else."""

import threading
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from bench.report.report import Report
from bench.report.targets import Target
from bench.serve.load import LoadFailed
from bench.serve.long_requests import LONG, REFUSED, save_models
from bench.serve.processes import sruserve

_TIMEOUT_SECONDS = 60


def behind_long_requests(report: Report, names: int) -> None:
    """Measure the longest wait for `/livez` while each of the first `names` requests runs."""
    with TemporaryDirectory() as folder, sruserve("sruserve", save_models(Path(folder))) as server:
        for name, (path, make) in list(LONG.items())[:names]:
            report.progress(f"a long request: {name}")
            connection = HTTPConnection("127.0.0.1", server.port, timeout=_TIMEOUT_SECONDS)
            content = make()

            def ask(name: str = name, path: str = path, content: bytes = content) -> None:
                status = _status(server.port, path, content)
                if status != REFUSED.get(name, 200):
                    raise LoadFailed(f"the long request {name!r} got status {status}")

            def probe(connection: HTTPConnection = connection) -> None:
                connection.request("GET", "/livez")
                connection.getresponse().read()

            pause = longest_pause(probe, ask) * 1e3
            report.check(f"{name}: the longest wait of others", pause, "ms", Target(maximum=250))
            connection.close()


def longest_pause(
    probe: Callable[[], object],
    work: Callable[[], object],
    clock: Callable[[], float] = perf_counter,
) -> float:
    """Return the longest time, in seconds, that a probe took while `work` was done."""
    longest, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal longest
        while not done.is_set():
            begin = clock()
            probe()
            longest = max(longest, clock() - begin)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        work()
    finally:
        done.set()
        watching.join()
    return longest


def _status(port: int, path: str, content: bytes) -> int:
    connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS)
    try:
        connection.request("POST", path, content, {"content-type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()
