"""Classification over HTTP: one text, many, features, and streams in any chunks."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from sruserve.server.http.responses.classify import ClassifyReply
from sruserve.server.repository.encoding import encode_features

TEXT = "How far is it from Denver to Aspen? who nowhere"


def classify(client: httpx.Client, **body: Any) -> dict[str, Any]:
    reply = client.post("/v1/classify", json={"model": "question"} | body)
    assert reply.status_code == 200, reply.text
    ClassifyReply.model_validate_json(reply.content, strict=True)
    answer: dict[str, Any] = reply.json()
    return answer


def scores(result: dict[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in ("label", "score", "scores")}


def test_a_text_gets_its_label_with_all_probabilities(client: httpx.Client) -> None:
    answer = classify(client, input=TEXT)
    (result,) = answer["results"]
    assert answer["id"].startswith("cls-")
    assert answer["model"] == "question"
    assert answer["usage"] == {"steps": 10}
    assert result["state"] is None
    assert result["scores"][result["label"]] == result["score"] == max(result["scores"].values())
    assert sum(result["scores"].values()) == pytest.approx(1, abs=1e-5)


def test_a_reply_names_its_request(client: httpx.Client) -> None:
    replies = [client.post("/v1/classify", json={"model": "question", "input": "a"}) for _ in "ab"]
    ids = {reply.headers["x-request-id"] for reply in replies}
    assert len(ids) == 2
    assert replies[0].json()["id"] == "cls-" + replies[0].headers["x-request-id"]


def test_a_list_gives_what_each_text_gives_alone(client: httpx.Client) -> None:
    texts = [TEXT, "who", "a b c " * 30, "how"]
    together = classify(client, input=texts)["results"]
    assert together == [classify(client, input=text)["results"][0] for text in texts]


def test_ids_give_what_their_text_gives(client: httpx.Client) -> None:
    by_text = classify(client, input="How far is")["results"]
    assert classify(client, input=[1, 2, 3])["results"] == by_text
    assert classify(client, input=[[1, 2, 3], [4]])["results"][:1] == by_text


@pytest.mark.parametrize("cut", range(1, len(TEXT) + 1))
def test_any_two_chunks_give_what_the_whole_text_gives(client: httpx.Client, cut: int) -> None:
    whole = classify(client, input=TEXT)["results"][0]
    first = classify(client, input=TEXT[:cut], more=True)["results"][0]
    last = classify(client, input=TEXT[cut:], state=first["state"])["results"][0]
    assert scores(last) == scores(whole)


def test_a_text_sent_character_by_character_gives_what_the_whole_gives(
    client: httpx.Client,
) -> None:
    state, steps = None, 0
    for character in TEXT:
        answer = classify(client, input=character, more=True, state=state)
        state = answer["results"][0]["state"]
        steps += answer["usage"]["steps"]
    last = classify(client, input="", state=state)
    assert scores(last["results"][0]) == scores(classify(client, input=TEXT)["results"][0])
    assert steps + last["usage"]["steps"] == 10


def test_a_chunk_that_finishes_no_word_gives_nulls_and_a_state(client: httpx.Client) -> None:
    answer = classify(client, input="Ho", more=True)
    (result,) = answer["results"]
    assert scores(result) == {"label": None, "score": None, "scores": None}
    assert result["state"]
    assert answer["usage"] == {"steps": 0}
    rest = classify(client, input="w far", state=result["state"])["results"][0]
    assert scores(rest) == scores(classify(client, input="How far")["results"][0])


def test_white_space_may_come_first_in_a_stream(client: httpx.Client) -> None:
    state = classify(client, input=" \n", more=True)["results"][0]["state"]
    last = classify(client, input="How", state=state)["results"][0]
    assert scores(last) == scores(classify(client, input="How")["results"][0])


def test_one_state_forks_to_many_inputs_and_can_be_used_again(client: httpx.Client) -> None:
    state = classify(client, input="How far ", return_state=True)["results"][0]["state"]
    ends = ["is it", "to Denver", "is it"]
    forked = classify(client, input=ends, state=state)["results"]
    assert forked[0] == forked[2]
    for end, result in zip(ends, forked, strict=True):
        assert result == classify(client, input=end, state=state)["results"][0]
        assert scores(result) == scores(classify(client, input=f"How far {end}")["results"][0])


def test_a_list_of_states_continues_each_and_null_begins_anew(client: httpx.Client) -> None:
    one, two = (
        classify(client, input=text, return_state=True)["results"][0]["state"]
        for text in ("How far ", "who is ")
    )
    results = classify(client, input=["it", "it", "it"], state=[one, None, two])["results"]
    for result, whole in zip(results, ["How far it", "it", "who is it"], strict=True):
        assert scores(result) == scores(classify(client, input=whole)["results"][0])


def test_features_are_classified_whole_and_in_chunks(client: httpx.Client) -> None:
    steps = [[0.1 * (i + j) for j in range(8)] for i in range(12)]
    whole = classify(client, model="sensor", features=steps)["results"][0]
    first = classify(client, model="sensor", features=steps[:5], return_state=True)["results"][0]
    last = classify(client, model="sensor", features=steps[5:], state=first["state"])["results"]
    assert scores(last[0]) == scores(whole)


def test_many_features_are_read_off_the_event_loop(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def watched(*args: Any) -> Any:
        threads.append(threading.current_thread().name)
        return encode_features(*args)

    monkeypatch.setattr("sruserve.server.tasks.sequences.encode_features", watched)
    classify(client, model="sensor", features=[[0.5] * 8] * 3)
    classify(client, model="sensor", features=[[0.5] * 8] * 3000)
    assert threads[0] != threads[1]


def test_a_bidirectional_model_serves_whole_texts(client: httpx.Client) -> None:
    assert classify(client, model="whole", input=TEXT)["results"][0]["label"]


def test_the_model_may_be_left_out_when_only_one_fits(serve: Any) -> None:
    with serve("question", "characters") as (client, _):
        reply = client.post("/v1/classify", json={"input": TEXT})
        assert reply.json()["model"] == "question"
        reply = client.post("/v1/score", json={"input": TEXT})
        assert reply.json()["model"] == "characters"


def test_answers_do_not_depend_on_who_else_is_served(client: httpx.Client) -> None:
    texts = [" ".join(TEXT.split()[: 1 + i % 9]) * (1 + i % 4) for i in range(64)]
    alone = [scores(classify(client, input=text)["results"][0]) for text in texts]
    start = threading.Barrier(16)

    def some(worker: int) -> list[tuple[int, dict[str, Any]]]:
        with httpx.Client(base_url=client.base_url, timeout=30) as own:
            start.wait()
            return [
                (i, scores(classify(own, input=texts[i])["results"][0]))
                for i in range(worker, 64, 16)
            ]

    with ThreadPoolExecutor(16) as pool:
        for results in pool.map(some, range(16)):
            for i, result in results:
                assert result == alone[i]


def test_a_long_text_is_read_off_the_event_loop_and_gives_the_same(client: httpx.Client) -> None:
    long = "How far is it " * 20_000
    whole = classify(client, input=long)
    assert whole["usage"]["steps"] == 80_000
    half = classify(client, input=long[: len(long) // 2], more=True)["results"][0]["state"]
    rest = classify(client, input=long[len(long) // 2 :], state=half)
    assert scores(rest["results"][0]) == scores(whole["results"][0])


@pytest.mark.parametrize("end", ["", " ", "\n"])
def test_a_stream_that_ends_with_an_empty_chunk_has_the_answer_of_the_whole(
    client: httpx.Client, end: str
) -> None:
    def ask(**fields: Any) -> dict[str, Any]:
        reply = client.post("/v1/classify", json={"model": "question", **fields})
        result: dict[str, Any] = reply.json()["results"][0]
        return result

    whole = ask(input="How far is it ")
    chunk = ask(input="How far is it ", more=True)
    assert chunk["scores"] == whole["scores"]
    no_step = ask(input="", more=True, state=chunk["state"])
    last = ask(input=end, state=no_step["state"])
    for reply in (no_step, last):
        assert (reply["label"], reply["scores"]) == (whole["label"], whole["scores"])


def test_a_stream_without_a_finished_word_has_no_label_yet(client: httpx.Client) -> None:
    reply = classify(client, input="Ho", more=True)["results"][0]
    assert (reply["label"], reply["score"], reply["scores"]) == (None, None, None)
    state = classify(client, input="How fa", more=True)["results"][0]["state"]
    known = classify(client, input="How ")["results"][0]
    half_a_word = classify(client, input="r", state=state, more=True)["results"][0]
    assert half_a_word["scores"] == known["scores"]


def test_raw_scores_are_the_logits(client: httpx.Client) -> None:
    plain = classify(client, input=TEXT)["results"][0]
    raw = classify(client, input=TEXT, raw_scores=True)["results"][0]
    assert raw["label"] == plain["label"]
    logits = np.array(list(raw["scores"].values()))
    assert raw["score"] == logits.max()
    softmax = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(softmax, list(plain["scores"].values()), atol=1e-6)
    chunk = classify(client, input="How far ", raw_scores=True, more=True)["results"][0]
    no_step = classify(client, input="i", raw_scores=True, more=True, state=chunk["state"])
    assert no_step["results"][0]["scores"] is None
    after = classify(client, input="", more=True, state=no_step["results"][0]["state"])
    assert scores(after["results"][0]) == scores(classify(client, input="How far ")["results"][0])
