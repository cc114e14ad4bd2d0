"""Completions of a model of bytes whose text is constrained."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from sruserve.server.tasks.constraint_cache import (
    ConstraintCache,
)

KEYS = ["one:11111111", "two:22222222", "three:33333333"]


def body(**options: Any) -> dict[str, Any]:
    return {"model": "bytes", "prompt": "a", "max_tokens": 5, "seed": 1} | options


def complete(client: httpx.Client, key: str = "11111111", **options: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"}
    return client.post("/v1/completions", json=body(**options), headers=headers)


@contextmanager
def stopped(grammars: ConstraintCache, client: httpx.Client) -> Iterator[None]:
    """While this lasts, no process is started for a grammar."""
    assert client.post("/v1/completions", json=body(regex="a")).status_code == 200
    assert grammars.host.pid is not None
    os.kill(grammars.host.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(grammars.host.pid, signal.SIGCONT)
