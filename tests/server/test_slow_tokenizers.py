"""Tokenizing that takes much time or memory holds one thread, and nobody else."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Sequence, Split, WhitespaceSplit

from sruserve.model.text.words import Words
from sruserve.server.offload import THREADS, Offload
from tests.server.conftest import LABELS, WORDS, Serve, words_vocabulary
from tests.server.observing import until
from tests.support import save_random_model

LARGE = 1 << 17  # characters of a part that is tokenized alone
TASKS = {"slow": "classify", "whole": "classify", "writer": "generate", "tagger": "tag"}


class Gate:
    """Texts with "stuck" wait in the tokenizer until `open`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.waiting: list[str] = []
        for name in ("encode", "locate"):
            monkeypatch.setattr(Words, name, self._behind(getattr(Words, name)))

    def _behind(self, work: Any) -> Any:
        def wait(words: Words, text: str, word: str = "", more: bool = False) -> Any:
            if "stuck" in word + text:
                self.waiting.append(threading.current_thread().name)
                assert self.open.wait(60)
            return work(words, text, word, more)

        return wait


@pytest.fixture(scope="module")
def client(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Models with a regular expression of exponential time, and "question" with none."""
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<oov>"))
    steps = [WhitespaceSplit(), Split(Regex("(a|aa)+$"), "isolated")]
    tokenizer.pre_tokenizer = Sequence(steps)
    slow: dict[str, Any] = {"vocabulary": tokenizer.to_str().encode(), "vocab_size": len(WORDS)}
    parent = tmp_path_factory.mktemp("models")
    for name, task in TASKS.items():
        labels = LABELS if task != "generate" else ()
        whole = {"bidirectional": True} if name == "whole" else {}
        save_random_model(parent / name, task, labels=labels, **slow, **whole)  # type: ignore[arg-type]
    slow["vocabulary"] = words_vocabulary()
    save_random_model(parent / "question", "classify", labels=LABELS, **slow)
    with serve(models=parent, model_folders=()) as (client, _):
        yield client


@contextmanager
def requests_at(
    gate: Gate, client: httpx.Client, path: str, body: dict[str, Any]
) -> Iterator[None]:
    """Requests whose tokenizer waits at a gate; when it opens, all are answered."""
    with ThreadPoolExecutor(2 * THREADS) as asking:
        try:
            pending = [asking.submit(client.post, path, json=body) for _ in range(2 * THREADS)]
            until(lambda: len(gate.waiting) > 0)
            yield
        finally:
            gate.open.set()
        for each in pending:
            assert each.result().status_code == 200, each.result().text


LONG_REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "classify": ("/v1/classify", {"model": "slow", "input": "stuck"}),
    "predict": ("/predict?model=slow", {"inputs": "stuck"}),
    "truncate": ("/predict?model=whole", {"inputs": "stuck", "truncate": True}),
    "complete": ("/v1/completions", {"model": "writer", "prompt": "stuck", "max_tokens": 1}),
    "score": ("/v1/score", {"model": "writer", "input": "stuck"}),
    "tag": ("/v1/tag", {"model": "tagger", "input": "stuck"}),
}


@pytest.mark.parametrize("name", LONG_REQUESTS)
def test_a_tokenizer_that_takes_long_holds_up_nobody_else(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path, body = LONG_REQUESTS[name]
    gate = Gate(monkeypatch)
    with requests_at(gate, client, path, body):
        for text in ("who", "who " * 10_000):  # on the event loop, and on the common threads
            reply = client.post("/v1/classify", json={"model": "question", "input": text})
            assert reply.status_code == 200, reply.text
        assert len(gate.waiting) == 1


@pytest.mark.parametrize(("path", "field"), [("/v1/classify", "input"), ("/tokenize", "prompt")])
def test_large_texts_without_a_place_to_cut_are_tokenized_one_at_a_time(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, field: str
) -> None:
    """Each takes up to 300 bytes for a character until its ids are known."""
    gate, body = Gate(monkeypatch), {"model": "question", field: "stuck" + "k" * LARGE}
    with requests_at(gate, client, path, body):
        for text in ("who", f"{'k' * 60} " * (LARGE // 60)):
            reply = client.post(path, json={"model": "question", field: text})
            assert reply.status_code == 200, reply.text
        assert len(gate.waiting) == 1
    assert len(gate.waiting) == 2 * THREADS


@pytest.mark.parametrize("following", ["who", [3]])
def test_a_large_word_that_a_state_holds_is_tokenized_alone(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, following: Any
) -> None:
    first = {"model": "question", "input": "stuck" + "€" * 50_000}  # of 3 bytes each
    reply = client.post("/v1/classify", json=first | {"more": True, "return_state": True})
    (begun,) = reply.json()["results"]
    gate = Gate(monkeypatch)
    body = {"model": "question", "input": following, "state": begun["state"]}
    with requests_at(gate, client, "/v1/classify", body):
        reply = client.post("/v1/classify", json={"model": "question", "input": "who " * 10_000})
        assert reply.status_code == 200, reply.text
        assert len(gate.waiting) == 1


def test_a_word_that_a_state_holds_counts_as_read(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    encode = Words.encode

    def seen(words: Words, *args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return encode(words, *args)

    monkeypatch.setattr(Words, "encode", seen)
    first = {"model": "question", "input": "a" * 60_000, "more": True, "return_state": True}
    (begun,) = client.post("/v1/classify", json=first).json()["results"]
    reply = client.post(
        "/v1/classify", json={"model": "question", "input": "b", "state": begun["state"]}
    )
    assert reply.status_code == 200, reply.text
    assert [name.startswith("offload") for name in threads] == [True, True]


def test_threads_of_models_that_are_gone_end() -> None:
    pool, names = Offload(2, idle_seconds=0.01), set[threading.Thread]()

    async def work() -> None:
        names.add(await pool.run(threading.current_thread, 1))

    for _ in range(2):  # a new one is started when there is work again
        asyncio.run(work())
        for thread in names:
            thread.join(60)
            assert not thread.is_alive()
    assert len(names) == 2


def test_ordinary_short_texts_stay_on_the_event_loop(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    gate.open.set()
    reply = client.post("/v1/classify", json={"model": "question", "input": "stuck"})
    assert reply.status_code == 200
    (name,) = gate.waiting
    assert not name.startswith("offload")
