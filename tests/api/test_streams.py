"""Streams in this process: any split is the whole, and states go to a server and back."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sruserve
from sruserve.api.model import Model
from sruserve.server.errors import (
    CannotStream,
    InvalidRequest,
    StateUnknownKey,
    StateWrongModel,
)
from tests.api.conftest import KEY
from tests.server.conftest import TEXT, Serve
from tests.support import save_random_model

Load = Callable[..., Model]


def split(text: str, cuts: list[int]) -> list[str]:
    at = [0, *sorted({cut for cut in cuts if cut < len(text)}), len(text)]
    return [text[begin:end] for begin, end in pairwise(at) if begin < end]


@given(cuts=st.lists(st.integers(1, len(TEXT) - 1), max_size=6))
def test_any_split_of_a_stream_gives_the_result_of_the_whole(load: Load, cuts: list[int]) -> None:
    model = load("question")
    stream = model.stream()
    *first, last = split(TEXT, cuts)
    for chunk in first:
        stream.send(chunk, more=True)
    assert stream.send(last) == model.classify(TEXT)


def test_a_stream_of_features_gives_the_result_of_the_whole(load: Load) -> None:
    model = load("sensor")
    features = np.random.default_rng(1).standard_normal((9, 8)).astype(np.float32)
    stream = model.stream()
    stream.send(features[:4])
    assert stream.send(features[4:]) == model.classify(features)
    assert stream.steps == 9


def test_a_stream_goes_to_a_server_and_back(load: Load, serve: Serve) -> None:
    model = load("question")
    whole = model.classify(TEXT)
    with serve("question", state_keys=KEY) as (client, _):
        stream = model.stream()
        stream.send("How far is it ", more=True)
        body = {"input": "from Den", "more": True, "state": stream.state}
        (reply,) = client.post("/v1/classify", json=body).json()["results"]
        back = model.stream(state=reply["state"])
        assert back.send("ver to Aspen?") == whole


def test_a_stream_begun_on_a_server_s_socket_state_ends_here(load: Load, serve: Serve) -> None:
    model = load("characters")
    whole = model.score("abcdef")
    with serve("characters", state_keys=KEY) as (client, _):
        body = {"input": "abc", "return_state": True}
        (reply,) = client.post("/v1/score", json=body).json()["results"]
    rest = model.stream(state=reply["state"]).send("def")
    assert isinstance(rest, sruserve.Score)
    assert reply["log_likelihood"] + rest.log_likelihood == pytest.approx(whole.log_likelihood)


def test_forks_continue_on_their_own(load: Load) -> None:
    model = load("question")
    stream = model.stream()
    stream.send("How far is it from Den", more=True)
    forks = stream.fork(3)
    ends = ["ver to Aspen?", "who", " what where"]
    results = [fork.send(end) for fork, end in zip(forks, ends, strict=True)]
    assert results == [model.classify(f"How far is it from Den{end}") for end in ends]
    assert stream.send("ver to Aspen?") == results[0]
    with pytest.raises(InvalidRequest, match="into 0"):
        stream.fork(0)


def test_a_stream_of_a_language_model_reads_and_writes(load: Load, serve: Serve) -> None:
    model = load("characters")
    stream = model.stream()
    stream.send("abc")
    forks = stream.fork(2)
    text = stream.generate(max_tokens=20, seed=1).read().text
    assert text == model.generate("abc", max_tokens=20, seed=1).read().text
    texts = [fork.generate(seed=seed, max_tokens=20).read().text for seed, fork in enumerate(forks)]
    assert texts[1] == text != texts[0]
    more = stream.generate("xyz", max_tokens=9).read().text
    with serve("characters", state_keys=KEY) as (client, _):
        body = {"prompt": "abc", "max_tokens": 20, "seed": 1, "return_state": True}
        (begun,) = client.post("/v1/completions", json=body).json()["choices"]
        body = {"prompt": "xyz", "max_tokens": 9, "state": begun["state"]}
        (choice,) = client.post("/v1/completions", json=body).json()["choices"]
    assert more == choice["text"]


def test_a_stream_refuses_a_second_reader_until_the_first_one_ends(load: Load) -> None:
    stream = load("characters").stream()
    stream.send("abc")
    steps = stream.steps
    generation = stream.generate(max_tokens=1_000_000)
    with pytest.raises(InvalidRequest, match="a completion is open"):
        stream.send("d")
    generation.close()
    assert stream.steps == steps
    stream.send("d")
    assert stream.steps == steps + 1


def test_a_chunk_that_is_refused_leaves_the_stream_where_it_was(load: Load) -> None:
    stream = load("characters").stream()
    stream.send("abc")
    before = stream.fork()[0]
    with pytest.raises(sruserve.ServeError):
        stream.send("\x01")
    assert stream.send("d") == before.send("d")


def test_an_awaited_stream_gives_the_same(load: Load) -> None:
    model, letters = load("question"), load("characters")

    async def read() -> Any:
        stream = model.aio.stream()
        await stream.send("How far is it from Den", more=True)
        writer = letters.aio.stream()
        await writer.send("abc")
        text = await writer.generate(max_tokens=20, seed=1).read()
        return await stream.fork()[0].send("ver to Aspen?"), text.text

    text = letters.generate("abc", max_tokens=20, seed=1).read().text
    assert asyncio.run(read()) == (model.classify(TEXT), text)


def test_sixteen_threads_read_streams_as_one_does(load: Load) -> None:
    model = load("question")

    def read(number: int) -> Any:
        stream = model.stream()
        for character in TEXT[: 10 + number % 5]:
            result = stream.send(character, more=True)
        return result

    alone = [read(number) for number in range(32)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(read, range(32))) == alone


def test_a_state_of_another_model_or_key_is_refused(load: Load, folders: Path) -> None:
    stream = load("characters").stream()
    assert stream.state is None
    stream.send("abc")
    with pytest.raises(StateWrongModel):
        load("other").stream(state=stream.state)
    with (
        sruserve.load(folders / "characters", device="cpu") as other_key,
        pytest.raises(StateUnknownKey),
    ):
        other_key.stream(state=stream.state)


def test_the_keys_of_the_environment_seal_states(
    folders: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SRUSERVE_STATE_KEYS", KEY)
    with sruserve.load(folders / "characters", device="cpu") as model:
        stream = model.stream()
        stream.send("abc")
        assert load("characters").stream(state=stream.state).steps == stream.steps


def test_a_model_of_whole_inputs_has_no_stream(load: Load) -> None:
    with pytest.raises(CannotStream):
        load("whole").stream()


def test_a_state_that_no_token_holds_streams_in_this_process(tmp_path: Path) -> None:
    save_random_model(tmp_path / "m", hidden_size=24, vocabulary=list(range(32, 127)))
    settings = {"SRUSERVE_MAX_STATE_TOKEN_BYTES": "200"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        model = sruserve.load(tmp_path / "m", device="cpu")
    with model:
        stream = model.stream()
        stream.send("abc")
        text = stream.generate(max_tokens=9, seed=1).read().text
        assert text == model.generate("abc", max_tokens=9, seed=1).read().text
        with pytest.raises(sruserve.ServeError) as caught:
            _ = stream.state
        assert caught.value.code == "state_too_large"
