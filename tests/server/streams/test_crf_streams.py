"""Streams of a tagger with a CRF: labels come when they are final, over every route."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sruserve.model.folder import load_model, save_model
from sruserve.model.heads.config import HeadConfig
from sruserve.server.http.responses.tag import TagReply
from sruserve.server.key_ring import KeyRing
from sruserve.server.state.token import Binding, StateSealer
from tests.server.conftest import CHARACTERS, TAGS, WORDS, Serve, words_vocabulary
from tests.server.posting import refusal
from tests.server.streams.conftest import KEYS
from tests.server.streams.routes import (
    Route,
    by_sequence,
    by_socket,
    by_token,
    held,
    over_http,
    parts,
)
from tests.server.test_tag import joined, moved
from tests.support import random_config, random_tensors, save_random_model

TEXT = "How far is it  from Denver to Aspen? who nowhere when a b c"
ROWS = [[0.3 * ((i * 7 + j) % 5) - 0.5 for j in range(8)] for i in range(40)]
WINDOW = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Taggers with a CRF: of words, of bytes, of features; the last two have special transitions.

    The paths of `apart` never meet. `forbids` has no path to its first label.
    """
    parent = tmp_path_factory.mktemp("crfs")
    head: dict[str, Any] = {"labels": TAGS, "head": HeadConfig(crf=True, crf_window=WINDOW)}
    words: dict[str, Any] = {"vocabulary": words_vocabulary(), "vocab_size": len(WORDS)}
    save_random_model(parent / "words", "tag", **words, **head)
    save_random_model(parent / "bytes", "tag", vocabulary=CHARACTERS, **head)
    save_random_model(parent / "motion", "tag", input_size=8, **head)
    config = random_config("tag", input_size=8, **head)
    tensors = {**random_tensors(config), "output.weight": torch.zeros(len(TAGS), 24)}
    apart = torch.full((len(TAGS), len(TAGS)), -100.0).fill_diagonal_(0)
    save_model(parent / "apart", config, tensors | {"crf.transitions": apart})
    tensors = random_tensors(config)
    for name in ("crf.start_transitions", "crf.transitions"):
        tensors[name] = tensors[name].clone()
        tensors[name][..., 0] = -torch.inf
    save_model(parent / "forbids", config, tensors)
    return parent


@pytest.fixture(scope="module")
def server(serve: Serve, store: dict[str, Any], folder: Path) -> Iterator[httpx.Client]:
    settings = {"state_keys": KEYS, **store}
    with serve(models=folder, model_folders=(), max_batch_tokens=4, **settings) as (client, _):
        yield client


def whole(server: httpx.Client, **body: Any) -> dict[str, Any]:
    (result,) = over_http(server, "/v1/tag", **body)["results"]
    assert result["pending"] == 0
    result = dict(result)
    result.pop("pending")
    return result


CUTS = st.lists(st.integers(1, len(TEXT)), max_size=5)


@pytest.mark.parametrize("model", ["words", "bytes"])
@pytest.mark.parametrize("route", [by_token, held, by_socket])
@settings(max_examples=25)
@given(cuts=CUTS)
def test_the_labels_of_any_chunks_are_those_of_the_whole(
    server: httpx.Client, route: Route, model: str, cuts: list[int]
) -> None:
    texts = parts(TEXT, cuts)
    results = route(server, "tag", model, texts)
    assert joined(list(zip(texts, results, strict=True))) == joined(
        [(TEXT, whole(server, model=model, input=TEXT))]
    )
    assert results[-1]["pending"] == 0


@pytest.mark.parametrize("model", ["words", "bytes"])
@settings(max_examples=25)
@given(cuts=CUTS)
def test_the_tensors_of_a_sequence_are_those_of_the_whole(
    server: httpx.Client, model: str, cuts: list[int]
) -> None:
    texts = parts(TEXT, cuts)
    results = by_sequence(server, "tag", model, texts)
    tokens = whole(server, model=model, input=TEXT)["tokens"]
    assert [label for result in results for label in result["labels"]] == [
        token["label"] for token in tokens
    ]
    begin, starts = 0, []
    for text, result in zip(texts, results, strict=True):
        starts += [start + begin for start in result["starts"]]
        begin += len(text)
    assert starts == [token["start"] for token in tokens]
    assert results[-1]["pending"] == [0]


def test_a_label_that_is_open_arrives_with_a_later_chunk(server: httpx.Client) -> None:
    texts = [TEXT[begin : begin + 5] for begin in range(0, len(TEXT), 5)]
    results = by_token(server, "tag", "words", texts)
    reply = {"id": "", "model": "", "results": results, "usage": {"steps": 0}}
    TagReply.model_validate(reply, strict=True)
    tokens = 0
    for result, read in zip(results, range(5, 99, 5), strict=False):
        tokens += len(result["tokens"])
        finished = len(TEXT[:read].rsplit(" ", 1)[0].split()) if read < len(TEXT) else tokens
        assert tokens + result["pending"] == finished
    assert any(result["pending"] for result in results)
    assert any(token["start"] < -5 for result in results for token in result["tokens"])


@settings(max_examples=25)
@given(cuts=st.lists(st.integers(0, len(ROWS)), max_size=5))
def test_features_in_chunks_have_indices_that_count_from_each_chunk(
    server: httpx.Client, cuts: list[int]
) -> None:
    state, tokens = None, []
    bounds = [0, *sorted(cut for cut in cuts if cut), len(ROWS)]
    for number, begin in enumerate(bounds[:-1], 1):
        more = number < len(bounds) - 1
        body = {"features": ROWS[begin : bounds[number]], "state": state, "more": more}
        (result,) = over_http(server, "/v1/tag", model="motion", **body)["results"]
        tokens += [moved(token, begin) for token in result["tokens"]]
        state = result["state"]
    assert tokens == whole(server, model="motion", features=ROWS)["tokens"]


def test_a_stream_of_a_crf_that_forbids_its_first_label_has_the_labels_of_the_whole(
    server: httpx.Client,
) -> None:
    state, tokens = None, []
    for begin in range(0, len(ROWS), 8):
        rows, more = ROWS[begin : begin + 8], begin + 8 < len(ROWS)
        body = {"features": rows, "state": state, "more": more}
        (result,) = over_http(server, "/v1/tag", model="forbids", **body)["results"]
        tokens += [moved(token, begin) for token in result["tokens"]]
        state = result["state"]
    assert tokens == whole(server, model="forbids", features=ROWS)["tokens"]
    assert TAGS[0] not in {token["label"] for token in tokens}


def test_a_list_continues_each_stream_as_alone(server: httpx.Client) -> None:
    texts = [TEXT[:20], TEXT[3:9], TEXT[10:]]
    first = over_http(server, "/v1/tag", model="bytes", input=texts, more=True)["results"]
    states = [result.pop("state") for result in first]
    body = {"model": "bytes", "input": texts[::-1], "state": states}
    together = over_http(server, "/v1/tag", **body)["results"]
    for text, after, state, results in zip(
        texts, texts[::-1], states, zip(first, together, strict=True), strict=True
    ):
        alone = over_http(server, "/v1/tag", model="bytes", input=text, more=True)["results"][0]
        alone.pop("state")
        one = {"model": "bytes", "input": after, "state": state}
        assert (alone, over_http(server, "/v1/tag", **one)["results"][0]) == results


def test_the_end_arrives_with_an_empty_chunk(server: httpx.Client) -> None:
    results = by_token(server, "tag", "bytes", [TEXT[:20], ""])
    assert results[0]["pending"] > 0
    assert len(results[1]["tokens"]) == results[0]["pending"]
    assert joined([(TEXT[:20], results[0]), ("", results[1])]) == joined(
        [("", whole(server, model="bytes", input=TEXT[:20]))]
    )


def test_an_input_that_has_ended_is_not_continued(server: httpx.Client) -> None:
    body = {"model": "words", "input": "How far", "return_state": True}
    (ended,) = over_http(server, "/v1/tag", **body)["results"]
    again = {"model": "words", "input": " is it", "state": ended["state"]}
    reply = server.post("/v1/tag", json=again)
    assert "has scored the last one" in refusal(reply, 422, "cannot_stream", "state")
    stream = over_http(server, "/v1/streams", model="words")["id"]
    over_http(server, f"/v1/streams/{stream}/steps", step=1, input="How far")
    reply = server.post(f"/v1/streams/{stream}/steps", json={"step": 2, "input": " is"})
    assert '"more": true' in refusal(reply, 422, "cannot_stream")


def test_a_chunk_whose_paths_do_not_meet_is_refused_and_changes_nothing(
    server: httpx.Client,
) -> None:
    stream = over_http(server, "/v1/streams", model="apart")["id"]
    steps = f"/v1/streams/{stream}/steps"
    first = over_http(server, steps, step=1, features=ROWS[:WINDOW], more=True)["results"][0]
    assert (first["tokens"], first["pending"]) == ([], WINDOW)
    body = {"step": 2, "features": ROWS[:1], "more": True}
    message = refusal(server.post(steps, json=body), 422, "labels_undecided")
    assert "send the whole input" in message
    assert "`crf_window`" in message
    last = over_http(server, steps, step=2, features=ROWS[:24], more=False)["results"][0]
    expected = whole(server, model="apart", features=[*ROWS[:WINDOW], *ROWS[:24]])
    assert [moved(token, WINDOW) for token in last["tokens"]] == expected["tokens"]


def test_the_text_of_open_labels_counts_for_each_input_that_repeats_it(
    server: httpx.Client,
) -> None:
    word = "\U0001f600" + "x" * 30_000  # unknown: one step, whose label stays open
    body = {"model": "words", "more": True, "return_state": True}
    begun = over_http(server, "/v1/tag", **body, input=f"{word} ")["results"][0]
    assert begun["pending"] == 1
    inputs = ["a"] * (8 * 1024 * 1024 // len(word) + 1)
    reply = server.post("/v1/tag", json={**body, "input": inputs, "state": begun["state"]})
    message = refusal(reply, 422, "input_too_long")
    assert f"have {len(inputs) * len(f'{word} ')} characters" in message


@pytest.mark.parametrize(
    ("place", "number"),
    [(0, 1e30), (0, -2), (6, 5), (6, 0.5), (slice(-1, None), ()), ("window", 3)],
)
def test_a_sealed_state_whose_open_labels_fit_no_state_of_the_model_is_refused(
    server: httpx.Client, folder: Path, place: int | slice | str, number: Any
) -> None:
    model = load_model(folder / "words")
    sealer = StateSealer(KeyRing.parse(KEYS), 0, 1 << 20)
    binding = Binding.of(model.digest, model.dtype, model.network.layout.width)
    begun = over_http(server, "/v1/tag", model="words", input=TEXT, more=True)["results"][0]
    assert begun["pending"] > 0
    state = sealer.open(begun["state"], binding)
    assert len(state.window) == 2 * begun["pending"]
    if place == "window":
        changed = replace(state, window=state.window[:number])
    else:
        numbers = state.probabilities.tolist()
        numbers[place] = number
        changed = replace(state, probabilities=np.array(numbers, np.float32))
    body = {"model": "words", "input": "a b", "state": sealer.seal(changed, binding)}
    message = refusal(server.post("/v1/tag", json=body), 422, "state_tampered", "state")
    assert "open labels do not fit" in message
    whole(server, **body | {"state": sealer.seal(state, binding)})


def test_features_that_overflow_leave_the_open_labels_as_they_were(server: httpx.Client) -> None:
    stream = over_http(server, "/v1/streams", model="motion")["id"]
    steps = f"/v1/streams/{stream}/steps"
    first = over_http(server, steps, step=1, features=ROWS[:7], more=True)["results"][0]
    body = {"step": 2, "features": [[1e38] * 8], "more": True}
    refusal(server.post(steps, json=body), 422, "not_finite")
    last = over_http(server, steps, step=2, features=ROWS[7:])["results"][0]
    tokens = [*first["tokens"], *(moved(token, 7) for token in last["tokens"])]
    assert tokens == whole(server, model="motion", features=ROWS)["tokens"]


def test_forks_rewinds_and_exported_states_have_their_own_open_labels(
    server: httpx.Client,
) -> None:
    expected = joined([(TEXT, whole(server, model="bytes", input=TEXT))])
    stream = over_http(server, "/v1/streams", model="bytes")["id"]
    steps = f"/v1/streams/{stream}/steps"
    first = over_http(server, steps, step=1, input=TEXT[:20], more=True)["results"][0]
    (fork,) = over_http(server, f"/v1/streams/{stream}/fork", n=1)["data"]
    token = server.get(f"/v1/streams/{stream}/state").json()["state"]
    over_http(server, steps, step=2, input="something else", more=True)
    over_http(server, f"/v1/streams/{stream}/rewind", step=1)
    lasts = [
        over_http(server, f"/v1/streams/{each}/steps", step=2, input=TEXT[20:])["results"][0]
        for each in (stream, fork["id"])
    ]
    lasts.append(whole(server, model="bytes", input=TEXT[20:], state=token))
    for last in lasts:
        assert joined([(TEXT[:20], first), (TEXT[20:], last)]) == expected


def test_ids_after_a_text_and_a_text_after_ids_keep_their_order(server: httpx.Client) -> None:
    state, labels = None, []
    for number, content in enumerate(["How far is", [3, 4], " it from", [5], "Denver"]):
        body = {"model": "words", "input": content, "state": state, "more": number < 4}
        (result,) = over_http(server, "/v1/tag", **body)["results"]
        labels += [token["label"] for token in result["tokens"]]
        state = result["state"]
    ids = [WORDS.index(word) for word in ("How", "far", "is")] + [3, 4]
    ids += [WORDS.index(word) for word in ("it", "from")] + [5, WORDS.index("Denver")]
    tokens = whole(server, model="words", input=ids)["tokens"]
    assert labels == [token["label"] for token in tokens]


def test_the_size_of_a_state_includes_the_open_paths(server: httpx.Client) -> None:
    models = {model["id"]: model for model in server.get("/v1/models").json()["data"]}
    assert models["motion"]["state_bytes"] == 4 * (2 * 24 + 1 + 5 * (1 + 2 * WINDOW))
    assert models["motion"]["streams"]
