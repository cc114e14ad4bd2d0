"""Server-held streams, in memory and in Redis: what clients see of them."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from sruserve.server.engine.engine import Engine
from sruserve.server.engine.job import Job
from sruserve.server.engine.snapshot import StateOutput
from tests.server.conftest import TEXT
from tests.server.observing import until
from tests.server.streams.conftest import Replicas
from tests.server.streams.replies import code, steps_done, text

GREEDY = {"temperature": 0, "max_tokens": 12}


def test_a_stream_tells_what_it_is(replicas: Replicas) -> None:
    assert replicas.clock is not None
    stream = replicas.create(idle_seconds=60)
    assert re.fullmatch(r"[\w-]{22}", stream), "128 bits that nobody can guess"
    described = replicas.get(stream).json()
    now = replicas.clock.now  # which stands still
    assert described.pop("created") == int(now)
    assert now + 59 <= described.pop("expires_at") <= now + 61
    assert described == {
        "id": stream, "object": "stream", "model": "characters", "task": "generate", "step": 0,
        "next_step": 1, "checkpoints": [0], "idle_seconds": 60,
    }  # fmt: skip


@pytest.mark.parametrize("cuts", [(), (1,), (4, 5, 17), tuple(range(1, len(TEXT)))])
def test_a_text_in_any_steps_is_classified_as_the_whole(
    replicas: Replicas, cuts: tuple[int, ...]
) -> None:
    body = {"model": "question", "input": TEXT}
    whole = replicas.ask("POST", "/v1/classify", json=body).json()["results"][0]
    stream = replicas.create("question")
    ends = [0, *cuts, len(TEXT)]
    for number, (begin, end) in enumerate(pairwise(ends), 1):
        more = end < len(TEXT)
        reply = replicas.step(stream, number, input=TEXT[begin:end], more=more)
        assert reply.status_code == 200, reply.text
        assert reply.json()["stream"] == stream
        assert reply.json()["step"] == number
    assert reply.json()["results"][0] == whole


def test_features_and_tags_in_steps_are_those_of_the_whole(replicas: Replicas) -> None:
    rows = [[0.1 * i, 1.0 - 0.2 * i] for i in range(6)]
    whole = replicas.ask("POST", "/v1/encode", json={"model": "small", "features": rows}).json()
    stream, outputs = replicas.create("small"), []
    for number, part in enumerate((rows[:1], rows[1:4], rows[4:]), 1):
        reply = replicas.step(stream, number, features=part)
        outputs += reply.json()["results"][0]["outputs"]
    assert outputs == whole["results"][0]["outputs"]

    body = {"model": "tagger", "input": TEXT}
    whole = replicas.ask("POST", "/v1/tag", json=body).json()["results"][0]["tokens"]
    stream = replicas.create("tagger")
    first = replicas.step(stream, 1, input=TEXT[:13], more=True).json()["results"][0]["tokens"]
    second = replicas.step(stream, 2, input=TEXT[13:]).json()["results"][0]["tokens"]
    assert [t["label"] for t in (*first, *second)] == [t["label"] for t in whole]
    assert [t["score"] for t in (*first, *second)] == [t["score"] for t in whole]


def test_a_completion_in_steps_is_the_completion_in_one(replicas: Replicas) -> None:
    sampling: dict[str, Any] = {"seed": 5, "temperature": 1}
    body = {"model": "characters", "prompt": "To be", "max_tokens": 30, **sampling}
    whole = text(replicas.ask("POST", "/v1/completions", json=body))
    stream = replicas.create()
    parts = [
        text(replicas.step(stream, 1, prompt="To", max_tokens=0, **sampling)),
        text(replicas.step(stream, 2, prompt=" be", max_tokens=7, **sampling)),
        text(replicas.step(stream, 3, prompt="", max_tokens=23)),
    ]
    assert "".join(parts) == whole


def test_a_score_is_a_step_of_a_language_model(replicas: Replicas) -> None:
    body = {"model": "characters", "input": "To be, or not"}
    whole = replicas.ask("POST", "/v1/score", json=body).json()["results"][0]
    stream = replicas.create()
    parts = [
        replicas.step(stream, 1, input="To be,").json()["results"][0],
        replicas.step(stream, 2, input=" or not").json()["results"][0],
    ]
    log_likelihood = sum(part["log_likelihood"] for part in parts)
    assert log_likelihood == pytest.approx(whole["log_likelihood"], rel=1e-12)
    assert sum(part["tokens"] for part in parts) == whole["tokens"]


def test_of_the_jobs_of_a_step_only_one_keeps_its_end(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    carries_state: list[bool] = []

    def submit(engine: Engine, job: Job) -> None:
        carries_state.append(job.state_output is not StateOutput.NONE)
        submitted(engine, job)

    submitted = Engine.submit
    stream = replicas.create()
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "submit", submit)
        body = {"prompt": "To be", "max_tokens": 3, "echo": True, "logprobs": 1}
        assert replicas.step(stream, 1, **body).status_code == 200
    assert carries_state == [False, True]  # the prompt is scored, then continued
    assert replicas.delete(stream).status_code == 200


def test_the_same_step_again_gives_the_stored_reply(replicas: Replicas) -> None:
    stream = replicas.create()
    first = replicas.step(stream, 1, prompt="To be")
    again = [replicas.step(stream, 1, prompt="To be") for _ in range(3)]
    assert [reply.content for reply in again] == [first.content] * 3
    second = replicas.step(stream, 2, prompt="")
    assert replicas.step(stream, 2, prompt="").content == second.content
    assert replicas.get(stream).json()["step"] == 2


def test_a_step_with_other_content_or_another_number_says_what_is_expected(
    replicas: Replicas,
) -> None:
    stream = replicas.create()
    replicas.step(stream, 1, prompt="To be", **GREEDY)
    replicas.step(stream, 2, prompt="", **GREEDY)
    other = replicas.step(stream, 2, prompt="x", **GREEDY)
    assert (other.status_code, code(other)) == (422, "step_reused")
    assert other.headers["x-should-retry"] == "false"
    for number in (0, 1, 4, 2**53):
        wrong = replicas.step(stream, number, prompt="", **GREEDY)
        assert (wrong.status_code, code(wrong)) == (409, "wrong_step")
        assert wrong.headers["x-should-retry"] == "false"
        assert wrong.json()["error"]["expected"] == 3
        assert "next step is 3" in wrong.json()["error"]["message"]
    assert replicas.step(stream, 3, prompt="", **GREEDY).status_code == 200


def test_fifty_clients_that_race_for_a_step_get_one_outcome(replicas: Replicas) -> None:
    stream = replicas.create()
    computed, repeated = steps_done(replicas, "computed"), steps_done(replicas, "repeated")

    def ask(_: int) -> bytes:
        reply = replicas.step(stream, 1, prompt="To be", max_tokens=200)
        assert reply.status_code == 200, reply.text
        return reply.content

    with ThreadPoolExecutor(50) as pool:
        replies = set(pool.map(ask, range(50)))
    assert len(replies) == 1
    assert steps_done(replicas, "computed") == computed + 1
    assert steps_done(replicas, "repeated") == repeated + 49


def test_of_many_different_requests_for_a_step_one_happens(replicas: Replicas) -> None:
    stream = replicas.create()
    with ThreadPoolExecutor(20) as pool:
        pending = [pool.submit(replicas.step, stream, 1, prompt=f"No {i}") for i in range(20)]
        codes = [each.result().status_code for each in pending]
    assert sorted(codes) == [200] + [422] * 19
    assert replicas.get(stream).json()["step"] == 1


def test_a_failed_step_changes_nothing(replicas: Replicas) -> None:
    stream = replicas.create()
    first = text(replicas.step(stream, 1, prompt="To be", **GREEDY))
    for wrong, why in (
        ({"prompt": ["a", "b"]}, "invalid_request"),
        ({"prompt": "a", "n": 2}, "invalid_request"),
        ({"prompt": [10**6]}, "invalid_request"),
        ({"prompt": "", "state": "x"}, "invalid_request"),
        ({"prompt": "", "preset": "x"}, "invalid_request"),
        ({"prompt": "", "return_state": True}, "invalid_request"),
        ({"prompt": "", "model": "characters"}, "invalid_request"),
        ({"prompt": "", "promt": ""}, "invalid_request"),
        ({"input": "a", "prompt": "a"}, "invalid_request"),
    ):
        reply = replicas.step(stream, 2, **wrong)
        assert (reply.status_code, code(reply)) == (422, why), reply.text
    assert replicas.get(stream).json()["step"] == 1
    second = text(replicas.step(stream, 2, prompt="", **GREEDY))
    body = {"model": "characters", "prompt": "To be", "temperature": 0, "max_tokens": 24}
    assert first + second == text(replicas.ask("POST", "/v1/completions", json=body))


def test_sixteen_forks_continue_from_the_same_state_each_for_itself(replicas: Replicas) -> None:
    stream = replicas.create()
    replicas.step(stream, 1, prompt="To be", **GREEDY)
    reply = replicas.post(stream, "fork", n=16)
    assert reply.status_code == 201
    forks = [each["id"] for each in reply.json()["data"]]
    assert len({stream, *forks}) == 17
    assert {each["next_step"] for each in reply.json()["data"]} == {2}
    own = text(replicas.step(stream, 2, prompt="", **GREEDY))
    assert {text(replicas.step(fork, 2, prompt="", **GREEDY)) for fork in forks} == {own}
    apart = [text(replicas.step(f, 3, prompt="", seed=i)) for i, f in enumerate(forks[:4])]
    assert len(set(apart)) > 1
    replicas.delete(stream)
    assert replicas.step(forks[-1], 3, prompt="", **GREEDY).status_code == 200


def test_a_stream_goes_back_to_its_last_eight_states(replicas: Replicas) -> None:
    stream = replicas.create()
    texts = [text(replicas.step(stream, n, prompt="a", **GREEDY)) for n in range(1, 11)]
    assert replicas.get(stream).json()["checkpoints"] == list(range(3, 11))
    lost = replicas.post(stream, "rewind", step=2)
    assert (lost.status_code, code(lost)) == (422, "no_checkpoint")
    assert "3, 4, 5, 6, 7, 8, 9, 10" in lost.json()["error"]["message"]
    back = replicas.post(stream, "rewind", step=5).json()
    assert (back["next_step"], back["checkpoints"]) == (6, [3, 4, 5])
    assert code(replicas.step(stream, 10, prompt="a", **GREEDY)) == "wrong_step"
    assert text(replicas.step(stream, 6, prompt="a", **GREEDY)) == texts[5]
    other = text(replicas.step(stream, 7, prompt="Z", **GREEDY))
    replicas.post(stream, "rewind", step=6)
    assert text(replicas.step(stream, 7, prompt="Z", **GREEDY)) == other


def test_a_stream_begins_again_at_step_0(replicas: Replicas) -> None:
    stream = replicas.create()
    first = text(replicas.step(stream, 1, prompt="To be"))
    assert replicas.post(stream, "rewind", step=0).json()["next_step"] == 1
    assert text(replicas.step(stream, 1, prompt="To be")) == first  # its seed is its own


def test_a_stream_begins_with_a_token_and_ends_in_one(replicas: Replicas) -> None:
    ask = {"model": "characters", "prompt": "To be", "seed": 3, "max_tokens": 10}
    begun = replicas.ask("POST", "/v1/completions", json={**ask, "return_state": True}).json()
    state = begun["choices"][0]["state"]
    more = {"model": "characters", "prompt": "", "state": state, "max_tokens": 20}
    expected = text(replicas.ask("POST", "/v1/completions", json=more))
    stream = replicas.create(state=state)
    first = text(replicas.step(stream, 1, prompt="", max_tokens=9))
    handed = replicas.get(stream, "/state").json()
    assert (handed["id"], handed["step"]) == (stream, 1)
    last = {"model": "characters", "prompt": "", "state": handed["state"], "max_tokens": 11}
    assert first + text(replicas.ask("POST", "/v1/completions", json=last)) == expected
    assert first + text(replicas.step(stream, 2, prompt="", max_tokens=11)) == expected


@pytest.mark.parametrize("model", ["question", "sensor", "tagger", "small", "characters"])
def test_a_stream_of_every_task_hands_its_state_over(replicas: Replicas, model: str) -> None:
    features = {"sensor": 8, "small": 2}.get(model)
    body: dict[str, Any] = {"input": "How far"} if features is None else {}
    if features is not None:
        body = {"features": [[0.5] * features] * 3}
    stream = replicas.create(model)
    assert replicas.get(stream, "/state").json()["state"] is None
    assert replicas.step(stream, 1, **body).status_code == 200
    state = replicas.get(stream, "/state").json()["state"]
    other = replicas.create(model, state=state)
    mine, its = replicas.step(stream, 2, **body).json(), replicas.step(other, 1, **body).json()
    assert mine["results"] == its["results"]


def test_events_of_a_step_are_live_and_the_same_when_repeated(replicas: Replicas) -> None:
    body = {"prompt": "To be", "max_tokens": 300, "seed": 1}
    plain = text(replicas.step(replicas.create(), 1, **body))
    stream = replicas.create()
    path = f"/v1/streams/{stream}/steps"
    pieces = []
    with replicas.clients[0].stream(
        "POST", path, json={"step": 1, **body, "stream": True}
    ) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        pieces = list(reply.iter_raw())
    events = b"".join(pieces)
    assert len(pieces) > 1
    assert events.endswith(b"data: [DONE]\n\n")
    again = replicas.step(stream, 1, **body, stream=True)
    assert again.content == events
    assert again.headers["content-type"].startswith("text/event-stream")
    lines = [json.loads(e[6:]) for e in events.decode().split("\n\n")[:-2]]
    assert "".join(each["choices"][0]["text"] for each in lines) == plain


def test_deleted_and_unknown_streams_are_not_there(replicas: Replicas) -> None:
    stream = replicas.create()
    replicas.step(stream, 1, prompt="a")
    gone = replicas.delete(stream)
    assert gone.json() == {"id": stream, "object": "stream.deleted", "deleted": True}
    for other in (stream, "x" * 22, "x" * 65, "a:b", "é"):
        for reply in (
            replicas.get(other),
            replicas.get(other, "/state"),
            replicas.delete(other),
            replicas.step(other, 1, prompt="a"),
            replicas.post(other, "fork"),
            replicas.post(other, "rewind", step=0),
        ):
            assert (reply.status_code, code(reply)) == (404, "stream_unknown"), reply.text


def test_what_cannot_be_a_stream_is_refused(replicas: Replicas) -> None:
    for body, status, why in (
        ({"model": "whole"}, 422, "cannot_stream"),
        ({"model": "none"}, 404, "model_not_found"),
        ({}, 422, "invalid_request"),
        ({"model": "characters", "preset": "none"}, 404, "preset_not_found"),
        ({"model": "characters", "state": "abc"}, 422, "state_tampered"),
        ({"model": "characters", "state": "a", "preset": "b"}, 422, "invalid_request"),
        ({"model": "characters", "idle_seconds": 0}, 422, "invalid_request"),
        ({"model": "characters", "id": "mine"}, 422, "invalid_request"),
    ):
        reply = replicas.ask("POST", "/v1/streams", json=body)
        assert (reply.status_code, code(reply)) == (status, why), reply.text


def test_no_state_is_left_when_all_streams_are_gone(replicas: Replicas) -> None:
    rows = replicas.rows
    created = [replicas.create("characters") for _ in range(3)]
    for stream in created:
        for number in range(1, 11):
            replicas.step(stream, number, prompt="a", max_tokens=1)
    forks = replicas.post(created[0], "fork", n=5).json()["data"]
    replicas.post(created[1], "rewind", step=7)
    if replicas.kind == "memory":
        until(lambda: replicas.rows == rows + 8 + 5 + 8)  # the engine drops states in its own time
    for stream in [*created, *(fork["id"] for fork in forks)]:
        assert replicas.delete(stream).status_code == 200
    until(lambda: replicas.rows == rows)
