"""Streams of a convolutional classifier, whose zeros after an input are part of no state."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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

PADDINGS: dict[str, dict[str, Any]] = {
    "bare": {"min_length": 4},
    "padded": {"filter_widths": [5, 3], "padding": [4, 2]},
}


@pytest.fixture(scope="module")
def server(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("convolutions")
    words: dict[str, Any] = {"vocabulary": words_vocabulary(), "vocab_size": len(WORDS)}
    for name, options in PADDINGS.items():
        save_random_model(
            folder / name, "classify", model_type="cnn", labels=LABELS, **words, **options
        )
    with serve(model_folders=(), models=folder, max_batch_tokens=3) as (client, _):
        yield client


def whole(server: httpx.Client, model: str, text: str = TEXT) -> dict[str, Any]:
    (result,) = over_http(server, "/v1/classify", model=model, input=text)["results"]
    assert isinstance(result, dict)
    scores: dict[str, Any] = result["scores"]
    return scores


@pytest.mark.parametrize("model", PADDINGS)
@pytest.mark.parametrize("route", [by_token, held, by_socket, by_sequence])
@settings(max_examples=5)
@given(cuts=st.lists(st.integers(1, len(TEXT)), max_size=4))
def test_any_split_gives_the_scores_of_the_whole(
    server: httpx.Client, route: Route, model: str, cuts: list[int]
) -> None:
    last = route(server, "classify", model, parts(TEXT, cuts))[-1]
    scores = last["scores"]
    numbers = list(scores.values()) if isinstance(scores, dict) else scores
    assert numbers == list(whole(server, model).values())


@pytest.mark.parametrize("model", PADDINGS)
def test_each_reply_of_a_stream_is_that_of_an_input_that_ends_there(
    server: httpx.Client, model: str
) -> None:
    words = TEXT.split()
    state = None
    for end in range(1, len(words) + 1):
        chunk = words[end - 1] if end == 1 else f" {words[end - 1]}"
        body = {"input": chunk, "state": state, "return_state": True}
        (reply,) = over_http(server, "/v1/classify", model=model, **body)["results"]
        assert reply["scores"] == whole(server, model, " ".join(words[:end]))
        state = reply["state"]


@pytest.mark.parametrize("model", PADDINGS)
def test_a_token_and_a_held_stream_fork(server: httpx.Client, model: str) -> None:
    first, ends = TEXT[:20], (TEXT[20:], " what")
    answers = [whole(server, model, first + end) for end in ends]
    (reply,) = over_http(server, "/v1/classify", model=model, input=first, more=True)["results"]
    for end, answer in zip(ends, answers, strict=True):
        body = {"input": end, "state": reply["state"]}
        (result,) = over_http(server, "/v1/classify", model=model, **body)["results"]
        assert result["scores"] == answer
    stream = over_http(server, "/v1/streams", model=model)["id"]
    over_http(server, f"/v1/streams/{stream}/steps", step=1, input=first, more=True)
    (fork,) = over_http(server, f"/v1/streams/{stream}/fork", n=1)["data"]
    for each, end, answer in zip((stream, fork["id"]), ends, answers, strict=True):
        result = over_http(server, f"/v1/streams/{each}/steps", step=2, input=end)
        assert result["results"][0]["scores"] == answer


def test_kserve_answers_a_batch_as_each_text_alone(server: httpx.Client) -> None:
    texts = ["who", TEXT, "a b c where"]
    body = {"inputs": [{"name": "text", "shape": [3, 1], "datatype": "BYTES", "data": texts}]}
    outputs = over_http(server, "/v2/models/padded/infer", **body)["outputs"]
    (scores,) = (output["data"] for output in outputs if output["name"] == "scores")
    alone = [score for text in texts for score in whole(server, "padded", text).values()]
    assert scores == alone
