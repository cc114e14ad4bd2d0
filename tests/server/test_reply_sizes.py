"""Replies are counted before they are made, and streams by what waits for their clients."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sruserve.model.text.byte_values import Bytes
from sruserve.server.app import Application
from sruserve.server.budget import Budget
from sruserve.server.engine.results import Generated
from sruserve.server.errors import Overloaded
from sruserve.server.tasks.choices import ChoiceBuilder
from sruserve.server.tasks.chunks import ChunkBuffer, Room
from sruserve.server.websocket import request as frames
from tests.server.conftest import CHARACTERS, Serve
from tests.server.http.json_requests import connect
from tests.server.observing import metric, until
from tests.server.posting import COMPLETE, post, refusal
from tests.server.websocket.sockets import SECONDS, open_socket
from tests.support import save_random_model

MAX_NUMBERS = 1000  # numbers of one reply
WORDS = {"model": "words", "echo": True, "n": 10}


@pytest.fixture(scope="module")
def running(serve: Serve) -> Iterator[tuple[httpx.Client, Application]]:
    """A server whose replies are short."""
    with serve("characters", "ids", "words", max_body_bytes=8 * MAX_NUMBERS) as running:
        yield running


@pytest.fixture(scope="module")
def small(running: tuple[httpx.Client, Application]) -> httpx.Client:
    return running[0]


@pytest.mark.parametrize(
    ("beyond", "within"),
    [
        ({"max_tokens": 21, "logprobs": 20}, {"max_tokens": 20, "logprobs": 20}),
        ({"max_tokens": 126, "logprobs": 0}, {"max_tokens": 125, "logprobs": 0}),
        ({"max_tokens": 11, "logprobs": 20, "n": 2}, {"max_tokens": 10, "logprobs": 20, "n": 2}),
        ({"max_tokens": 101, "n": 10}, {"max_tokens": 100, "n": 10}),
        ({"max_tokens": 501, "return_token_ids": True}, {"max_tokens": 501}),
        ({"prompt": "a" * 100, "echo": True, "n": 10}, {"prompt": "a" * 100, "n": 10}),
        (WORDS | {"prompt": "a" + 399 * " "}, WORDS | {"prompt": "a" + 195 * " "}),
        (WORDS | {"prompt": "a" + 399 * " ", "stream": True}, WORDS | {"prompt": "a"}),
        (WORDS | {"prompt": "é" * 99}, WORDS | {"prompt": "é" * 98}),
    ],
    ids=[
        "log-probabilities",
        "none of others",
        "n",
        "text alone",
        "token ids",
        "an echo",
        "spaces",
        "a stream",
        "a word",
    ],
)
def test_a_completion_is_counted_before_it_is_made(
    small: httpx.Client, beyond: dict[str, Any], within: dict[str, Any]
) -> None:
    body = {"model": "characters", "prompt": "a", "max_tokens": 1}
    reply = post(small, COMPLETE, body | beyond)
    message = refusal(reply, 422, "input_too_long")
    assert "lower `max_tokens`, `n` or `logprobs`" in message
    assert post(small, COMPLETE, body | within).status_code == 200


def test_the_reply_to_a_step_is_counted_as_a_whole_even_if_it_is_streamed(
    small: httpx.Client,
) -> None:
    stream = small.post("/v1/streams", json={"model": "characters"}).json()["id"]
    steps = f"/v1/streams/{stream}/steps"
    long = {"step": 1, "prompt": "a", "max_tokens": 21, "logprobs": 20}
    for more in ({}, {"stream": True}):
        refusal(small.post(steps, json=long | more), 422, "input_too_long")
    short = long | {"max_tokens": 20, "stream": True}
    assert small.post(steps, json=short).text.endswith("data: [DONE]\n\n")


def test_a_completion_through_tensors_is_counted_too(small: httpx.Client) -> None:
    def infer(tokens: int) -> httpx.Response:
        text = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}
        body = {"inputs": [text], "parameters": {"max_tokens": tokens}}
        return small.post("/v2/models/characters/infer", json=body)

    reply = infer(MAX_NUMBERS + 1)
    assert reply.status_code == 400
    assert "max_tokens" in reply.json()["error"]
    assert infer(MAX_NUMBERS // 2).status_code == 200


def test_a_stream_may_say_more_than_a_whole_reply_as_long_as_its_client_reads(
    serve: Serve,
) -> None:
    body = {"model": "characters", "prompt": "a", "max_tokens": 800, "logprobs": 5}
    with serve("characters", max_body_bytes=8 * 10 * MAX_NUMBERS) as (client, _):
        refusal(client.post(COMPLETE, json=body), 422, "input_too_long")
        text = client.post(COMPLETE, json=body | {"stream": True}).text
        assert text.endswith("data: [DONE]\n\n")
        assert "error" not in text
        with open_socket(client) as socket:
            socket.send(json.dumps(body))
            tokens, choice = 0, {"finish_reason": None}
            while choice["finish_reason"] is None:
                (choice,) = json.loads(socket.recv(SECONDS))["choices"]
                tokens += len(choice["logprobs"]["tokens"])
        assert tokens == 800


def test_a_long_echo_is_written_on_a_thread(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def note(made: Any) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            threads.append(threading.current_thread().name.split()[0])
            return made(*args)

        return noted

    monkeypatch.setattr(ChoiceBuilder, "part", note(ChoiceBuilder.part))
    monkeypatch.setattr(frames, "_text", note(frames._text))
    prompt = "a" + 100_000 * " "
    body = {"model": "words", "prompt": prompt, "max_tokens": 1, "echo": True}
    assert prompt in post(client, COMPLETE, body).text
    assert prompt in post(client, COMPLETE, body | {"stream": True}).text
    with open_socket(client) as socket:
        socket.send(json.dumps(body))
        assert prompt in str(socket.recv(SECONDS))
    assert set(threads) == {"offload"}
    threads.clear()
    post(client, COMPLETE, body | {"prompt": "a"})
    assert "offload" not in threads


def test_a_few_long_states_are_sealed_on_a_thread(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    part = ChoiceBuilder.part

    def noted(*args: Any) -> Any:
        threads.append(threading.current_thread().name.split()[0])
        return part(*args)

    monkeypatch.setattr(ChoiceBuilder, "part", noted)
    save_random_model(tmp_path / "wide", vocabulary=CHARACTERS, hidden_size=1024)
    with serve(model_folders=(tmp_path / "wide",)) as (client, _):
        for n, want in ((2, set()), (16, {"offload"})):
            threads.clear()
            body = {"model": "wide", "prompt": "a", "max_tokens": 1, "n": n}
            assert post(client, COMPLETE, body | {"return_state": True}).status_code == 200
            assert set(threads) & {"offload"} == want
        threads.clear()
        assert post(client, COMPLETE, body).status_code == 200
        assert "offload" not in threads


def test_everything_that_was_counted_is_returned(
    running: tuple[httpx.Client, Application], small: httpx.Client
) -> None:
    _, application = running
    for fields in ({}, {"stream": True}, {"logprobs": 2}, {"prompt": 5}):
        post(small, COMPLETE, {"prompt": "a", "max_tokens": 5} | fields)
    stream = small.post("/v1/streams", json={"model": "characters"}).json()["id"]
    ways: list[dict[str, Any]] = [{}, {"stream": True}, {"stream": True, "stop": "a"}]
    for step, more in enumerate(ways, 1):
        body = {"step": step, "prompt": "a", "max_tokens": 5} | more
        assert small.post(f"/v1/streams/{stream}/steps", json=body).status_code == 200
    until(lambda: application.limits.replies.used == 0)


def test_an_honest_request_for_log_probabilities_works(client: httpx.Client) -> None:
    reply = post(client, COMPLETE, {"prompt": "a", "max_tokens": 1000, "logprobs": 5})
    (choice,) = reply.json()["choices"]
    assert len(choice["logprobs"]["top_logprobs"]) == 1000


def test_a_stream_whose_client_takes_nothing_ends_with_an_error_and_gives_its_room_back() -> None:
    async def talk() -> None:
        budget = Budget(100, Overloaded)
        done = asyncio.get_running_loop().create_future()
        hold = budget.hold(10)
        buffer = ChunkBuffer(done, 1, Room(hold, free=10, numbers_per_token=2, limit=50))
        piece = Generated("abc", [1, 2, 3])
        for _ in range(8):
            buffer.put(0, piece)
        assert budget.used == 48
        assert len(await buffer.take(1)) == 8
        buffer.put(0, piece)  # what was taken is being sent, and still counts
        with pytest.raises(Overloaded, match="read faster"):
            await buffer.take(1)
        assert done.cancelled()
        hold.release()
        assert budget.used == 0

    asyncio.run(talk())


def test_a_client_that_keeps_up_is_not_touched_by_those_who_fill_the_budget() -> None:
    async def talk() -> None:
        budget = Budget(100, Overloaded)
        mine = budget.hold(10)
        others = budget.hold(90)
        buffer = ChunkBuffer(
            asyncio.get_running_loop().create_future(),
            1,
            Room(mine, free=10, numbers_per_token=1, limit=50),
        )
        for _ in range(20):
            buffer.put(0, Generated("abc", [1, 2, 3]))
            assert await buffer.take(1)
        assert budget.used == 100
        others.release()

    asyncio.run(talk())


def test_a_tenant_leaves_room_for_the_replies_of_others(serve: Serve) -> None:
    keys = "greedy:greedy-key,second:second-key,modest:modest-key"
    with serve("characters", api_keys=keys, max_queue_bytes=16 * MAX_NUMBERS) as (
        client,
        application,
    ):
        replies = application.limits.replies
        half, quarter = MAX_NUMBERS, MAX_NUMBERS // 2
        with replies.hold(half, "greedy"), replies.hold(quarter, "second"):
            for key, status in (("greedy-key", 429), ("second-key", 429), ("modest-key", 200)):
                client.headers["authorization"] = f"Bearer {key}"
                body = {"prompt": "a", "max_tokens": 300}
                assert post(client, COMPLETE, body).status_code == status
                few = post(client, COMPLETE, {"prompt": "a"})
                assert few.status_code == 200, "a short reply does not count"


def test_tensors_that_are_being_sent_count_as_their_tenants(serve: Serve) -> None:
    keys = "greedy:greedy-key,modest:modest-key"
    texts = 60
    text = {"name": "text", "datatype": "BYTES", "shape": [texts, 1], "data": ["who"] * texts}
    limits: dict[str, Any] = {"api_keys": keys, "max_queue_bytes": 8 * MAX_NUMBERS}
    with serve("question", **limits) as (client, application):
        scores = texts * len(application.lifecycle.catalogue["question"].labels)
        room = scores + 1  # for the scores, and not for the labels and their scores beside them
        with application.limits.replies.hold(MAX_NUMBERS // 2 - room, "greedy"):
            for key, status in (("greedy-key", 503), ("modest-key", 200)):
                client.headers["authorization"] = f"Bearer {key}"
                reply = client.post("/v2/models/question/infer", json={"inputs": [text]})
                assert reply.status_code == status


def test_a_step_whose_client_leaves_while_it_is_streamed_holds_nothing_in_the_end(
    serve: Serve,
) -> None:
    body = {"step": 1, "prompt": "a", "max_tokens": 3000, "min_tokens": 3000, "logprobs": 3}
    with serve("characters") as (client, application):
        path = f"/v1/streams/{client.post('/v1/streams', json={}).json()['id']}"
        with connect(client, f"{path}/steps", {**body, "stream": True}) as connection:
            assert b"200 OK" in connection.recv(4096)
        until(lambda: client.get(path).json()["step"] == 1)
        until(lambda: application.lifecycle.active == 0)
        until(lambda: application.limits.replies.used == 0)


def test_a_step_whose_client_leaves_while_it_is_read_holds_nothing_in_the_end(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, begun, encode = threading.Event(), threading.Event(), Bytes.encode

    def slowly(self: Bytes, *args: Any) -> Any:
        begun.set()
        go_on.wait(60)
        return encode(self, *args)

    left = 'sru_client_disconnects_total{model="characters"}'
    with serve("characters") as (client, application):
        path = f"/v1/streams/{client.post('/v1/streams', json={}).json()['id']}"
        before = metric(client, left)
        monkeypatch.setattr(Bytes, "encode", slowly)
        long = {"step": 1, "prompt": "a" * 40_000, "max_tokens": 5}
        with connect(client, f"{path}/steps", long):
            assert begun.wait(60)
        until(lambda: metric(client, left) == before + 1)
        go_on.set()
        until(lambda: client.get(path).json()["step"] == 1)
        until(lambda: application.limits.replies.used == 0)
