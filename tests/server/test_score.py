"""Scoring over HTTP: likelihoods add up, whole and in chunks."""

from math import log
from typing import Any

import httpx
import pytest

from sruserve.server.http.responses.score import ScoreReply

TEXT = "To be, or nöt to be — that is"


def score(client: httpx.Client, **body: Any) -> dict[str, Any]:
    reply = client.post("/v1/score", json={"model": "characters"} | body)
    assert reply.status_code == 200, reply.text
    ScoreReply.model_validate_json(reply.content, strict=True)
    result: dict[str, Any] = reply.json()["results"][0]
    return result


def test_all_but_the_first_token_are_scored(client: httpx.Client) -> None:
    result = score(client, input="To be")
    assert (result["characters"], result["tokens"]) == (4, 4)
    assert result["log_likelihood"] < 0
    assert result["bits_per_character"] == -result["log_likelihood"] / log(2) / 4


def test_characters_are_counted_not_bytes(client: httpx.Client) -> None:
    result = score(client, input=TEXT)
    assert result["characters"] == len(TEXT) - 1
    assert result["tokens"] == len(TEXT.encode()) - 1
    assert result["bits_per_character"] > result["bits_per_token"]


def test_one_character_has_no_bits(client: httpx.Client) -> None:
    result = score(client, input="T")
    assert (result["characters"], result["bits_per_character"]) == (0, None)
    assert result["log_likelihood"] == 0


@pytest.mark.parametrize("cut", range(1, len(TEXT)))
def test_the_chunks_of_a_text_score_what_the_whole_scores(client: httpx.Client, cut: int) -> None:
    whole = score(client, input=TEXT, return_state=True)
    first = score(client, input=TEXT[:cut], return_state=True)
    second = score(client, input=TEXT[cut:], state=first["state"])
    total = first["log_likelihood"] + second["log_likelihood"]
    assert total == pytest.approx(whole["log_likelihood"], rel=1e-12)
    assert first["characters"] + second["characters"] == whole["characters"]


def test_a_list_scores_what_each_text_scores_alone(client: httpx.Client) -> None:
    texts = [TEXT, "a", "x" * 3000]
    reply = client.post("/v1/score", json={"model": "characters", "input": texts})
    assert reply.json()["results"] == [score(client, input=text) for text in texts]


def test_a_completions_state_scores_what_follows(client: httpx.Client) -> None:
    body = {"model": "characters", "prompt": "To be", "max_tokens": 0, "return_state": True}
    state = client.post("/v1/completions", json=body).json()["choices"][0]["state"]
    joined = score(client, input="To be, or")["log_likelihood"]
    parts = score(client, input="To be")["log_likelihood"]
    parts += score(client, input=", or", state=state)["log_likelihood"]
    assert parts == pytest.approx(joined, rel=1e-12)


WORDS = "How far is it from  Denver to Aspen? who nowhere"


@pytest.mark.parametrize("cut", range(1, len(WORDS) + 1))
def test_chunks_of_words_cut_anywhere_score_what_the_whole_scores(
    client: httpx.Client, cut: int
) -> None:
    whole = score(client, model="words", input=WORDS)
    first = score(client, model="words", input=WORDS[:cut], more=True)
    second = score(client, model="words", input=WORDS[cut:], state=first["state"])
    total = first["log_likelihood"] + second["log_likelihood"]
    assert total == pytest.approx(whole["log_likelihood"], rel=1e-12)
    for name in ("characters", "tokens"):
        assert first[name] + second[name] == whole[name]


def complete(client: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    body = {"model": "characters", "max_tokens": 20} | body
    choices: list[dict[str, Any]] = client.post("/v1/completions", json=body).json()["choices"]
    return choices


def test_a_score_keeps_the_seed_and_the_choice_of_its_stream(client: httpx.Client) -> None:
    for begun in complete(client, prompt="To be", seed=7, n=2, return_state=True):
        scored = score(client, input=", or", state=begun["state"], return_state=True)["state"]
        (after,) = complete(client, prompt="", state=scored)
        (never_scored,) = complete(client, prompt=", or", state=begun["state"])
        assert after["text"] == never_scored["text"]


def test_two_streams_that_begin_with_a_score_have_seeds_of_their_own(client: httpx.Client) -> None:
    states = [score(client, input="To be", return_state=True)["state"] for _ in "ab"]
    one, two = (complete(client, prompt="", state=state)[0]["text"] for state in states)
    assert one != two
