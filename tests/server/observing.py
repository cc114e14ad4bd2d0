"""Wait for what a server does, and read its metrics."""

import time
from collections.abc import Callable

import httpx


def metric(client: httpx.Client, line: str) -> float:
    """The value of one sample; 0 if it is not there yet."""
    for row in client.get("/metrics").text.splitlines():
        if row.startswith(line + " "):
            return float(row.rsplit(" ", 1)[1])
    return 0.0


def until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never became true"
        time.sleep(0.01)
