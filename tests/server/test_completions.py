"""Completions over HTTP, whole and as raw events."""

import asyncio
import codecs
import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from sruserve.server.http.responses.complete import CompletionReply
from sruserve.server.repository.served_model import ServedModel
from tests.server.conftest import CHARACTERS, Serve
from tests.server.held_steps import Steps

PROMPT = "To be, or not"


def complete(client: httpx.Client, **body: Any) -> dict[str, Any]:
    reply = client.post("/v1/completions", json={"model": "characters", "seed": 7} | body)
    assert reply.status_code == 200, reply.text
    CompletionReply.model_validate_json(reply.content, strict=True)
    answer: dict[str, Any] = reply.json()
    return answer


def choice(client: httpx.Client, **body: Any) -> dict[str, Any]:
    first_choice: dict[str, Any] = complete(client, **body)["choices"][0]
    return first_choice


def events(client: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    """The JSON of all events; checks the frame around them."""
    body = {"model": "characters", "seed": 7, "stream": True} | body
    with client.stream("POST", "/v1/completions", json=body) as reply:
        assert reply.status_code == 200
        assert reply.headers["content-type"].startswith("text/event-stream")
        text = reply.read().decode()
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    assert blocks.pop() == "data: [DONE]"
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


@pytest.mark.parametrize("cuts", [(1,), (20,), (59,), (1, 2, 3), (7, 30, 31)])
def test_a_text_stopped_anywhere_and_continued_is_the_text_never_stopped(
    client: httpx.Client, cuts: tuple[int, ...]
) -> None:
    whole = choice(client, prompt=PROMPT, max_tokens=60, return_state=True)["text"]
    text, state = "", None
    for begin, end in zip((0, *cuts), (*cuts, 60), strict=True):
        body: dict[str, Any] = {"prompt": "", "state": state, "seed": None}
        if state is None:
            body = {"prompt": PROMPT}
        part = choice(client, max_tokens=end - begin, return_state=True, **body)
        text, state = text + part["text"], part["state"]
    assert text == whole


@pytest.mark.parametrize("cut", [1, 4, 12])
def test_a_prompt_sent_in_parts_gives_what_the_whole_prompt_gives(
    client: httpx.Client, cut: int
) -> None:
    whole = choice(client, prompt=PROMPT, max_tokens=30)["text"]
    state = choice(client, prompt=PROMPT[:cut], max_tokens=0, return_state=True)["state"]
    assert choice(client, prompt=PROMPT[cut:], state=state, max_tokens=30)["text"] == whole


def test_the_state_of_a_stream_is_on_the_chunk_that_ends_it(client: httpx.Client) -> None:
    chunks = events(client, prompt=PROMPT, max_tokens=40, return_state=True)
    with_state = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0].get("state")]
    assert [each["finish_reason"] for each in with_state] == ["length"]
    rest = choice(client, prompt="", state=with_state[0]["state"], seed=None, max_tokens=20)["text"]
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    assert text + rest == choice(client, prompt=PROMPT, max_tokens=60)["text"]


def test_a_seed_fixes_the_text_and_its_absence_does_not(client: httpx.Client) -> None:
    texts = {choice(client, prompt=PROMPT, max_tokens=30)["text"] for _ in range(3)}
    assert len(texts) == 1
    free = {choice(client, prompt=PROMPT, max_tokens=30, seed=None)["text"] for _ in range(3)}
    assert len(free) == 3


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 + 5, -(2**70)])
def test_any_whole_number_is_a_seed(client: httpx.Client, seed: int) -> None:
    one, two = (choice(client, prompt=PROMPT, seed=s)["text"] for s in (seed, seed % 2**64))
    assert one == two


def test_n_choices_differ_and_each_depends_on_the_seed_and_its_number_only(
    client: httpx.Client,
) -> None:
    four = complete(client, prompt=PROMPT, n=4, max_tokens=30)
    texts = [each["text"] for each in four["choices"]]
    assert [each["index"] for each in four["choices"]] == [0, 1, 2, 3]
    assert len(set(texts)) == 4
    two = complete(client, prompt=PROMPT, n=2, max_tokens=30)["choices"]
    assert [each["text"] for each in two] == texts[:2]
    assert four["usage"] == {
        "prompt_tokens": 13,
        "completion_tokens": 120,
        "total_tokens": 133,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_n_streams_arrive_interleaved_but_whole(client: httpx.Client) -> None:
    whole = complete(client, prompt=PROMPT, n=3, max_tokens=50)["choices"]
    texts, ends = ["", "", ""], []
    for chunk in events(client, prompt=PROMPT, n=3, max_tokens=50):
        part = chunk["choices"][0]
        texts[part["index"]] += part["text"]
        ends += [part["index"]] if part["finish_reason"] else []
    assert texts == [each["text"] for each in whole]
    assert sorted(ends) == [0, 1, 2]


def test_one_state_forks_to_n_choices_and_to_many_prompts(client: httpx.Client) -> None:
    state = choice(client, prompt=PROMPT, max_tokens=5, return_state=True)["state"]
    forked = complete(client, prompt=["", "x"], state=state, n=2, seed=None)["choices"]
    assert len({each["text"] for each in forked}) == 4
    assert forked[0]["text"] == choice(client, prompt="", state=state, seed=None)["text"]
    again = complete(client, prompt=["", "x"], state=state, n=2, seed=None)["choices"]
    assert [each["text"] for each in again] == [each["text"] for each in forked]


def test_many_prompts_give_what_each_gives_alone(client: httpx.Client) -> None:
    prompts = ["a", "To be", "x" * 500]
    together = complete(client, prompt=prompts, max_tokens=20)["choices"]
    assert [each["text"] for each in together] == [
        choice(client, prompt=prompt, max_tokens=20)["text"] for prompt in prompts
    ]


def test_a_stop_string_ends_the_text_before_it(client: httpx.Client) -> None:
    whole = choice(client, prompt=PROMPT, max_tokens=80)["text"]
    stop = whole[30:33]
    completion = choice(client, prompt=PROMPT, max_tokens=80, stop=[stop, "never to be found"])
    assert completion["text"] == whole[: whole.index(stop)]
    assert (completion["finish_reason"], completion["stop_reason"]) == ("stop", stop)
    parts = events(client, prompt=PROMPT, max_tokens=80, stop=stop)
    assert "".join(part["choices"][0]["text"] for part in parts) == completion["text"]


def test_logprobs_have_openais_shape_and_the_same_offsets_in_a_stream(
    client: httpx.Client,
) -> None:
    whole_logprobs = choice(client, prompt=PROMPT, max_tokens=12, logprobs=3)["logprobs"]
    assert {len(whole_logprobs[name]) for name in whole_logprobs} == {12}
    assert all(1 <= len(top) <= 4 for top in whole_logprobs["top_logprobs"])
    joined: dict[str, list[Any]] = {name: [] for name in whole_logprobs}
    for chunk in events(client, prompt=PROMPT, max_tokens=12, logprobs=3):
        for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
            joined[name] += values
    assert joined == whole_logprobs
    none = choice(client, prompt=PROMPT, max_tokens=12, logprobs=0)["logprobs"]
    assert none["token_logprobs"] == whole_logprobs["token_logprobs"]


def bytes_of(token: str) -> bytes:
    """The bytes of a token of a reply."""
    if token.startswith("bytes:"):
        return bytes.fromhex(token.removeprefix("bytes:").replace("\\x", ""))
    return token.encode()


@pytest.mark.parametrize("seed", range(5))
def test_text_offsets_count_the_text_before_a_token_and_no_bytes_of_characters(
    client: httpx.Client, seed: int
) -> None:
    body: dict[str, Any] = {"max_tokens": 30, "logprobs": 0, "return_state": True}
    first = choice(client, prompt=PROMPT, seed=seed, **body)
    state = first["state"]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for completion in (first, choice(client, prompt="", state=state, seed=None, **body)):
        tokens = completion["logprobs"]["tokens"]
        assert any(token.startswith("bytes:") for token in tokens)
        read, offsets = decoder.getstate()[0], []
        for token in tokens:
            begins_character = bytes_of(token)[0] & 0xC0 != 0x80
            before = codecs.getincrementaldecoder("utf-8")("replace")
            offsets.append(len(before.decode(read, begins_character)))
            read += bytes_of(token)
        assert decoder.decode(b"".join(map(bytes_of, tokens))) == completion["text"]
        assert completion["logprobs"]["text_offset"] == offsets


def test_a_token_after_an_unfinished_character_begins_after_its_replacement(
    client: httpx.Client,
) -> None:
    prompt = [CHARACTERS.index(byte) for byte in b"\xc3Jk"]
    completion = choice(client, prompt=prompt, max_tokens=0, echo=True, logprobs=0)
    assert completion["text"] == "\ufffdJk"
    assert completion["logprobs"]["text_offset"] == [0, 1, 2]


def test_text_offsets_begin_after_the_text_that_was_held_back(client: httpx.Client) -> None:
    body: dict[str, Any] = {"max_tokens": 6, "return_state": True}
    text = choice(client, prompt=PROMPT, **body)["text"]
    first = choice(client, prompt=PROMPT, stop=text[-1] + "never to be found", **body)
    assert first["text"] == text[:-1]
    rest = choice(client, prompt="", state=first["state"], seed=None, logprobs=0, **body)
    assert rest["text"].startswith(text[-1])
    assert rest["logprobs"]["text_offset"][0] == 1


def test_text_offsets_of_words_and_ids(client: httpx.Client) -> None:
    completion = choice(client, model="words", prompt="How far", max_tokens=8, logprobs=0)
    offsets = completion["logprobs"]["text_offset"]
    for offset, token in zip(offsets, completion["logprobs"]["tokens"], strict=True):
        assert completion["text"][offset:].startswith(token)
    completion = choice(client, model="ids", prompt=[1], max_tokens=8, logprobs=0)
    assert completion["logprobs"]["text_offset"] == [0] * 8


def test_a_prompt_whose_words_are_cut_is_read_by_score(client: httpx.Client) -> None:
    whole = choice(client, model="words", prompt="How far is", max_tokens=5)["text"]
    body = {"model": "words", "input": "How fa", "more": True}
    state = client.post("/v1/score", json=body).json()["results"][0]["state"]
    assert choice(client, model="words", prompt="r is", state=state, max_tokens=5)["text"] == whole


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_many_states_are_sealed_off_the_event_loop(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    threads: list[bool] = []
    seal = ServedModel.seal_state

    def watched(self: ServedModel, snapshot: Any) -> str | None:
        with contextlib.suppress(RuntimeError):  # there is no loop in this thread
            asyncio.get_running_loop()
            threads.append(False)
            return seal(self, snapshot)
        threads.append(True)
        return seal(self, snapshot)

    monkeypatch.setattr(ServedModel, "seal_state", watched)
    body = {"prompt": PROMPT, "max_tokens": 2, "return_state": True}
    if stream:
        states = [c["choices"][0].get("state") for c in events(client, n=100, **body)]
    else:
        states = [c["state"] for c in complete(client, n=100, **body)["choices"]]
    assert sum(state is not None for state in states) == 100
    assert threads.count(True) == 100


def test_a_model_without_vocabulary_takes_and_returns_ids(client: httpx.Client) -> None:
    completion = choice(client, model="ids", prompt=[1, 2, 3], max_tokens=10)
    assert len(completion["token_ids"]) == 10
    assert all(0 <= token < 50 for token in completion["token_ids"])
    parts = events(client, model="ids", prompt=[1, 2, 3], max_tokens=10)
    streamed = [token for part in parts for token in part["choices"][0]["token_ids"]]
    assert streamed == completion["token_ids"]


def test_max_tokens_0_reads_the_prompt_only(client: httpx.Client) -> None:
    answer = complete(client, prompt=PROMPT, max_tokens=0, return_state=True)
    assert answer["choices"][0]["text"] == ""
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["choices"][0]["state"]


def test_nulls_mean_openais_defaults(client: httpx.Client) -> None:
    names = ("max_tokens", "temperature", "top_p", "n", "stream", "stop", "logprobs", "suffix")
    answer = complete(client, prompt=PROMPT, **dict.fromkeys(names))
    assert answer["usage"]["completion_tokens"] == 16


def test_harmless_openai_fields_are_taken(client: httpx.Client) -> None:
    complete(client, prompt="a", user="me", metadata={"a": "b"}, ignore_eos=True, best_of=1)
    complete(client, prompt="a", frequency_penalty=0, presence_penalty=0.0, logit_bias={})


def test_a_silent_stream_is_kept_alive_with_comments(serve: Serve, steps: Steps) -> None:
    with serve("characters", sse_ping_seconds=0.01) as (client, application):
        body = {"prompt": PROMPT, "max_tokens": 5, "stream": True}
        steps.hold(application)
        with client.stream("POST", "/v1/completions", json=body) as reply:
            parts = reply.iter_text()
            text = ""
            while text.count(": ping\n\n") < 2:
                text += next(parts)
            steps.go_on()
            text += "".join(parts)
    assert text.endswith("data: [DONE]\n\n")
    assert set(text.split("\n\n")) > {": ping", "data: [DONE]"}


def test_64_streams_at_once_each_give_the_text_they_give_alone(client: httpx.Client) -> None:
    prompts = [PROMPT[: 1 + i % 13] for i in range(64)]
    alone = [choice(client, prompt=p, max_tokens=40, seed=i)["text"] for i, p in enumerate(prompts)]

    def one(i: int) -> str:
        parts = events(client, prompt=prompts[i], max_tokens=40, seed=i)
        return "".join(part["choices"][0]["text"] for part in parts)

    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(one, range(64))) == alone
