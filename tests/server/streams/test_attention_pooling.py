"""Streams of a classifier that weighs all steps by attention, over every route."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sruserve.model.heads.config import HeadConfig
from tests.server.conftest import LABELS, TEXT, WORDS, Serve, words_vocabulary
from tests.server.streams.routes import (
    Route,
    by_sequence,
    by_socket,
    by_token,
    held,
    over_http,
    parts,
)
from tests.support import save_random_model

ATTENTION = [
    {"type": "linear", "size": 6},
    {"type": "activation", "function": "tanh"},
    {"type": "linear", "size": 1, "bias": False},
]


@pytest.fixture(scope="module")
def server(
    serve: Serve, store: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    head = HeadConfig.model_validate({"pooling": "attention", "attention": ATTENTION})
    path = tmp_path_factory.mktemp("models") / "attending"
    words: dict[str, Any] = {"vocabulary": words_vocabulary(), "vocab_size": len(WORDS)}
    save_random_model(path, "classify", labels=LABELS, head=head, **words)
    with serve(model_folders=(path,), models=None, max_batch_tokens=3, **store) as (client, _):
        yield client


def whole(server: httpx.Client) -> dict[str, Any]:
    (result,) = over_http(server, "/v1/classify", input=TEXT)["results"]
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize("route", [by_token, held, by_socket, by_sequence])
@given(cuts=st.lists(st.integers(1, len(TEXT)), max_size=4))
def test_any_split_gives_the_scores_of_the_whole(
    server: httpx.Client, route: Route, cuts: list[int]
) -> None:
    last = route(server, "classify", "attending", parts(TEXT, cuts))[-1]
    expected = list(whole(server)["scores"].values())
    scores = last["scores"]
    assert (list(scores.values()) if isinstance(scores, dict) else scores) == expected


def test_a_stream_has_no_label_before_its_first_step(server: httpx.Client) -> None:
    before, after = by_token(server, "classify", "attending", [TEXT[:2], TEXT[2:]])
    assert before["label"] is before["scores"] is None
    assert after["scores"] == whole(server)["scores"]


def test_forks_and_rewinds_continue_from_their_own_sums(server: httpx.Client) -> None:
    stream = over_http(server, "/v1/streams", model="attending")["id"]
    steps = f"/v1/streams/{stream}/steps"
    over_http(server, steps, step=1, input=TEXT[:20], more=True)
    (fork,) = over_http(server, f"/v1/streams/{stream}/fork", n=1)["data"]
    over_http(server, steps, step=2, input=" something else", more=True)
    over_http(server, f"/v1/streams/{stream}/rewind", step=1)
    for each in (stream, fork["id"]):
        reply = over_http(server, f"/v1/streams/{each}/steps", step=2, input=TEXT[20:])
        assert reply["results"][0]["scores"] == whole(server)["scores"]
