"""Tiny models of every kind, and real servers for them on free loopback ports."""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

import sruserve
from sruserve.model.heads.config import HeadConfig
from sruserve.server.app import Application
from sruserve.server.http.uvicorn_http import HttpProtocol
from sruserve.server.tasks.caller import Caller
from tests.server.declared_errors import undeclared_errors
from tests.server.held_steps import Steps
from tests.server.serving import serve_models
from tests.support import save_random_model

LABELS = ("description", "entity", "abbreviation", "human", "location", "number")
TEXT = "How far is it from Denver to Aspen?"
TAGS = ("O", "B-PLACE", "I-PLACE", "B-WHO", "I-WHO")
LETTERS = ("O", "vowel", "consonant")
WORDS = ("<oov>", *TEXT.split(), "who", "what", "where", "when", "a", "b", "c")
CHARACTERS = [10, *range(32, 127), *range(0x80, 0xC0), *range(0xC2, 0xF5)]  # all of UTF-8

Serve = Callable[..., AbstractContextManager[tuple[httpx.Client, Application]]]
Leftovers = Callable[[], list[Any]]


def words_vocabulary() -> bytes:
    """A tokenizer.json of a few words."""
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<oov>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return bytes(tokenizer.to_str().encode())


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model folders: three that classify (question; whole: bidirectional; sensor: features) and
    four that generate (characters, other, words, ids)."""
    parent = tmp_path_factory.mktemp("models")
    words: dict[str, Any] = {"vocabulary": words_vocabulary(), "vocab_size": len(WORDS)}
    save_random_model(parent / "question", "classify", labels=LABELS, **words)
    save_random_model(parent / "whole", "classify", labels=LABELS, bidirectional=True, **words)
    save_random_model(parent / "sensor", "classify", labels=LABELS, input_size=8)
    save_random_model(parent / "characters", vocabulary=CHARACTERS)
    save_random_model(parent / "other", vocabulary=CHARACTERS, seed=1)
    save_random_model(parent / "words", **words)
    save_random_model(parent / "ids", vocab_size=50)
    return parent


@pytest.fixture(autouse=True)
def undeclared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A test fails in which a route answers with an error that it does not declare."""
    with undeclared_errors(monkeypatch) as undeclared:
        yield undeclared
    assert not undeclared


@pytest.fixture(scope="session")
def serve(folders: Path) -> Serve:
    """`with serve("question", port=…) as (client, application)`: see `serve_models`."""
    return partial(serve_models, folders)


@pytest.fixture(scope="session")
def server(serve: Serve) -> Iterator[tuple[httpx.Client, Application]]:
    """One server with all models, for tests that need nothing special."""
    with serve(sse_ping_seconds=0.2, state_keys="a" * 64) as running:
        yield running


@pytest.fixture
def leftovers() -> Iterator[Leftovers]:
    """What of the server was made since the test began and is garbage; to be called once."""

    def uncollected() -> list[Any]:
        time.sleep(0.05)  # the reply is there before its request has ended
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect(0)
        return [each for each in gc.garbage if _of_the_server(each)]

    gc.disable()
    gc.collect(0)  # what was there before is not of the youngest generation then
    try:
        yield uncollected
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def _of_the_server(garbage: Any) -> bool:
    kind = type(garbage)  # `isinstance` would ask a weak proxy, whose object may be gone
    if kind is FrameType:
        return str(garbage.f_code.co_filename).startswith(f"{sruserve.__path__[0]}/server")
    return issubclass(kind, Caller | HttpProtocol | RequestResponseCycle)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Steps]:
    """Steps that a test holds in the middle, however fast the machine is."""
    gate = Steps(monkeypatch)
    yield gate
    gate.go_on()


@pytest.fixture(scope="session")
def task_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that tag (tagger, letters, motion, backwards), encode (encoder, small,
    reader, both-ways) and compare (pairs, pairs-mean, pairs-attention)."""
    parent = tmp_path_factory.mktemp("tasks")
    words: dict[str, Any] = {"vocabulary": words_vocabulary(), "vocab_size": len(WORDS)}
    save_random_model(parent / "tagger", "tag", labels=TAGS, **words)
    save_random_model(parent / "letters", "tag", labels=LETTERS, vocabulary=CHARACTERS)
    save_random_model(parent / "motion", "tag", labels=TAGS, input_size=8)
    save_random_model(parent / "backwards", "tag", labels=TAGS, bidirectional=True, **words)
    save_random_model(parent / "encoder", "encode", input_size=8)
    save_random_model(parent / "small", "encode", input_size=2)
    save_random_model(parent / "reader", "encode", **words)
    save_random_model(parent / "both-ways", "encode", input_size=8, bidirectional=True)
    pair: dict[str, Any] = {"labels": ("same", "other"), **words}
    save_random_model(parent / "pairs", "pair", **pair)
    for pooling in ("mean", "attention"):
        head = HeadConfig(pooling=pooling, combine="difference")
        save_random_model(
            parent / f"pairs-{pooling}", "pair", head=head, bidirectional=True, **pair
        )
    return parent


@pytest.fixture(scope="session")
def tasks(serve: Serve, task_folders: Path) -> Iterator[httpx.Client]:
    """A server of all `task_folders`, whose steps are short."""
    with serve(models=task_folders, model_folders=(), max_batch_tokens=64) as (client, _):
        yield client


@pytest.fixture(scope="session")
def client(server: tuple[httpx.Client, Application]) -> httpx.Client:
    return server[0]


@pytest.fixture(scope="session")
def application(server: tuple[httpx.Client, Application]) -> Application:
    return server[1]
