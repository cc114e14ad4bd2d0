"""Models that change while they are served."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import LABELS, words_vocabulary
from tests.server.observing import until
from tests.support import save_random_model

WORDS: dict[str, Any] = {"vocabulary": words_vocabulary(), "vocab_size": 16}


def save_version(folder: Path, version: int) -> Path:
    """A version of a classifier, with weights of its own."""
    return save_random_model(
        folder / str(version),
        "classify",
        labels=LABELS,
        seed=version,
        **WORDS,
    )


def change(client: httpx.Client, name: str, what: str) -> httpx.Response:
    """Load or unload a model."""
    return client.post(f"/v2/repository/models/{name}/{what}")


def classify(client: httpx.Client, model: str = "question", **body: Any) -> httpx.Response:
    return client.post("/v1/classify", json={"model": model, "input": "who what where", **body})


def version_of(client: httpx.Client, name: str = "question") -> str:
    return str(client.get(f"/v1/models/{name}").json()["version"])


@contextmanager
def always_asking(
    client: httpx.Client, ask: Callable[[httpx.Client], httpx.Response]
) -> Iterator[list[httpx.Response]]:
    """Three clients that ask all the time while the block runs; their replies."""
    replies: list[httpx.Response] = []
    over = threading.Event()

    def run() -> None:
        with httpx.Client(base_url=client.base_url, timeout=60) as own:
            while not over.is_set():
                replies.append(ask(own))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        more(replies)
        yield replies
        more(replies)
    finally:
        over.set()
        for thread in threads:
            thread.join(60)


def more(replies: list[httpx.Response]) -> None:
    """Wait for some more of them."""
    seen = len(replies)
    until(lambda: len(replies) > seen + 10)


def texts(replies: Sequence[httpx.Response]) -> set[str]:
    return {json.dumps(reply.json()["results"][0]["scores"]) for reply in replies}


def without_threads(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    """No thread whose name begins like that can be started."""
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(prefix):
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
