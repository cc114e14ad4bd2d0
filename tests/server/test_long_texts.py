"""Long texts are read part by part, each part in a turn on a thread, to the same results."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from sruserve.model.text.words import Words
from sruserve.server.tuning import Tuning
from tests.server.conftest import Serve
from tests.server.posting import COMPLETE, post, refusal

TEXT = "How  far is it from\tDenver to Aspen? who a b c " * 200  # a long one
BEGUN = TEXT + "Den"
MAX_PART = 64  # characters of a part

Servers = tuple[httpx.Client, httpx.Client]  # the second one reads texts in short parts


@contextmanager
def twice(serve: Serve, *names: str, **settings: Any) -> Iterator[Servers]:
    """Two servers with one key of states."""
    settings["state_keys"] = "a" * 64
    parted = Tuning(turn_characters=MAX_PART)
    with (
        serve(*names, **settings) as (whole, _),
        serve(*names, **settings, tuning=parted) as (in_parts, _),
    ):
        yield whole, in_parts


@pytest.fixture(scope="module")
def servers(serve: Serve, task_folders: Any) -> Iterator[Servers]:
    names = ("tagger", "reader", "pairs")
    chosen = tuple(task_folders / name for name in names)
    with twice(serve, models=task_folders, model_folders=chosen) as servers:
        yield servers


@pytest.fixture(scope="module")
def writers(serve: Serve) -> Iterator[Servers]:
    with twice(serve, "words", "whole", "question", max_batch_tokens=64) as servers:
        yield servers


class Reads:
    """Notes how many characters of a text are read at a time."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        encode, locate = Words.encode, Words.locate

        def encoded(codec: Words, text: str, *args: Any) -> Any:
            self.sizes.append(len(text))
            return encode(codec, text, *args)

        def located(codec: Words, text: str, *args: Any) -> Any:
            self.sizes.append(len(text))
            return locate(codec, text, *args)

        patch.setattr(Words, "encode", encoded)
        patch.setattr(Words, "locate", located)


def content(reply: httpx.Response) -> Any:
    """What a reply says, without what differs between two of them."""
    assert reply.status_code == 200, reply.text
    body = reply.json()
    results: list[Any] = body
    if isinstance(body, dict):
        results = body["results" if "results" in body else "choices"]
    return [
        {name: value for name, value in each.items() if name != "state"}
        if isinstance(each, dict)
        else each
        for each in results
    ]


def check(
    servers: Servers, path: str, body: dict[str, Any], patch: pytest.MonkeyPatch
) -> list[int]:
    """That a request has the same reply in parts; the sizes of the parts."""
    whole, in_parts = servers
    expected = content(whole.post(path, json=body))
    with patch.context() as within:
        reads = Reads(within)
        assert content(in_parts.post(path, json=body)) == expected
    return reads.sizes


@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("model", ["tagger", "reader"])
def test_parts_of_texts_and_their_states_are_as_the_whole(
    servers: Servers, model: str, more: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "/v1/tag" if model == "tagger" else "/v1/encode"
    begun = post(servers[0], path, {"model": model, "input": "a b Den", "more": True})
    state = begun.json()["results"][0]["state"]
    texts = ["ver " + BEGUN, "who", "ver", BEGUN]
    body = {"model": model, "input": texts, "state": state, "more": more}
    sizes = check(servers, path, body, monkeypatch)
    assert max(sizes) <= MAX_PART
    assert sum(sizes) == sum(map(len, texts))


def test_parts_of_pairs_are_as_the_whole(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"model": "pairs", "input": [TEXT, "who"], "pair": ["a b", TEXT]}
    assert max(check(servers, "/v1/classify", body, monkeypatch)) <= MAX_PART
    message = post(servers[0], "/v1/classify", body | {"pair": ["a", ""]})
    refusal(message, 422, "empty_input", "pair")


def test_parts_of_prompts_are_as_the_whole(
    writers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "words", "prompt": ["who " + TEXT, "who"], "seed": 1, "max_tokens": 3}
    assert max(check(writers, COMPLETE, body, monkeypatch)) <= MAX_PART
    body |= {"echo": True, "logprobs": 1}
    assert max(check(writers, COMPLETE, body, monkeypatch)) <= MAX_PART


def test_parts_of_what_is_truncated_are_as_the_whole(
    writers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for side in ("Left", "Right"):
        body = {"inputs": [[TEXT], ["who"]], "truncate": True, "truncation_direction": side}
        assert max(check(writers, "/predict?model=whole", body, monkeypatch)) <= MAX_PART


def test_a_long_word_is_one_part(writers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"model": "question", "input": "who " + 9000 * "k" + " who"}
    assert check(writers, "/v1/classify", body, monkeypatch) == [4, 9001, 3]
