"""What is too long or too much gets an error that names the limit, and nobody else is touched."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from sruserve.server.engine.admission_queue import AdmissionQueue
from sruserve.server.engine.job import Job
from sruserve.server.errors import OutOfDeviceMemory, Overloaded
from sruserve.server.offload import POOL, THREADS, offload
from sruserve.server.tasks.limits import FREE_BYTES, InputLimits
from tests.server.conftest import Serve
from tests.server.hand_clock import HandClock
from tests.server.held_steps import Steps
from tests.server.http.json_requests import connect
from tests.server.observing import until
from tests.server.posting import CLASSIFY, COMPLETE, SCORE, post, refusal
from tests.server.tasks.gated_reading import GatedReading

ENCODE = "/v1/encode"


@pytest.fixture(scope="module")
def small(serve: Serve) -> Iterator[httpx.Client]:
    """A server with small limits."""
    limits = {"max_body_bytes": 5000, "max_input_bytes": 1000, "max_inputs": 4}
    with serve(max_new_tokens=50, max_batch_tokens=64, **limits) as (client, _):
        yield client


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CLASSIFY, {"input": "a " * 501}, "input"),
        (CLASSIFY, {"input": "é" * 501}, "input"),
        (CLASSIFY, {"input": [1] * 1001}, "input"),
        (CLASSIFY, {"input": ["a"] * 5}, "input"),
        (CLASSIFY, {"model": "sensor", "features": [[]] * 1001}, "features"),
        (COMPLETE, {"prompt": "a" * 1001}, "prompt"),
        (COMPLETE, {"prompt": "a", "n": 5}, "n"),
        (COMPLETE, {"prompt": ["a", "b", "c"], "n": 2}, "n"),
        (SCORE, {"input": "a" * 1001}, "input"),
    ],
)
def test_absurdly_long_input(small: httpx.Client, path: str, body: Any, param: str) -> None:
    message = refusal(post(small, path, body), 422, "input_too_long", param)
    is_list = param == "n" or len(body.get("input", ())) == 5
    assert ("SRUSERVE_MAX_INPUTS" if is_list else "SRUSERVE_MAX_INPUT_BYTES") in message


def test_a_limit_itself_is_allowed(small: httpx.Client) -> None:
    assert post(small, CLASSIFY, {"input": "a " * 500}).status_code == 200
    assert post(small, CLASSIFY, {"input": ["a"] * 4}).status_code == 200
    assert post(small, COMPLETE, {"prompt": "a", "max_tokens": 50}).status_code == 200
    assert post(small, COMPLETE, {"prompt": "a", "max_tokens": 25, "n": 2}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "a", "max_tokens": 51},
        {"prompt": "a", "max_tokens": 26, "n": 2},
        {"prompt": ["a", "b"], "max_tokens": 13, "n": 2},
        {"prompt": ["a", "b", "c", "d"], "max_tokens": None},
    ],
    ids=["one", "n", "prompts times n", "the default"],
)
def test_more_new_tokens_than_all_completions_together_may_have(
    small: httpx.Client, body: Any
) -> None:
    message = refusal(post(small, COMPLETE, body), 422, "invalid_request", "max_tokens")
    assert "SRUSERVE_MAX_NEW_TOKENS" in message


def test_a_bidirectional_model_says_how_much_it_reads(small: httpx.Client) -> None:
    reply = post(small, CLASSIFY, {"model": "whole", "input": "a " * 65})
    message = refusal(reply, 422, "input_too_long")
    assert "64" in message
    assert "SRUSERVE_MAX_BATCH_TOKENS" in message


@pytest.mark.parametrize("size", [5001, 9000, 1_000_000])
def test_a_body_over_the_limit_is_413_even_in_chunks(small: httpx.Client, size: int) -> None:
    body = b'{"input":"' + b"a" * size + b'"}'

    def chunks() -> Iterator[bytes]:
        for i in range(0, len(body), 1000):
            yield body[i : i + 1000]

    message = refusal(small.post(CLASSIFY, content=body), 413, "body_too_large")
    assert "SRUSERVE_MAX_BODY_BYTES" in message
    try:
        refusal(small.post(CLASSIFY, content=chunks()), 413, "body_too_large")
    except (httpx.WriteError, httpx.ReadError):
        assert size > 10_000  # the server hung up on a sender that would not end
    assert post(small, CLASSIFY, {"input": "a"}).status_code == 200


@pytest.mark.parametrize("max_bytes", [150, 500, 1100], ids="holds {}".format)
def test_a_state_that_no_token_can_hold_is_refused_before_any_work(
    serve: Serve, max_bytes: int
) -> None:
    """500 holds the recurrent state, and 1100 that of a short text, without its last 64 tokens."""
    with serve("characters", max_state_token_bytes=max_bytes) as (client, _):
        body = {"prompt": "a", "return_state": True}
        message = refusal(post(client, COMPLETE, body), 422, "state_too_large", "return_state")
        assert "SRUSERVE_MAX_STATE_TOKEN_BYTES" in message
        more = {"model": "characters", "input": "a", "more": True}
        refusal(post(client, SCORE, more), 422, "state_too_large", "more")
        message = refusal(
            post(client, COMPLETE, {"prompt": "a", "state": "A" * (max_bytes + 4)}),
            422, "state_too_large", "state",
        )  # fmt: skip
        assert "SRUSERVE_MAX_STATE_TOKEN_BYTES" in message
        assert post(client, COMPLETE, {"prompt": "a"}).status_code == 200


def test_a_state_that_a_token_can_just_hold_fits_when_its_stream_is_long(serve: Serve) -> None:
    with serve("characters", max_state_token_bytes=1160) as (client, _):
        body = {"prompt": "a" * 100, "return_state": True, "max_tokens": 1, "seed": 1}
        state = post(client, COMPLETE, body).json()["choices"][0]["state"]
        assert len(state) > 1120
        assert post(client, COMPLETE, {"prompt": "a", "state": state}).status_code == 200


def test_bodies_that_are_made_into_tokens_are_bounded_like_the_queue(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = {"input": "a" * 40_000}

    with serve("characters", max_queue_bytes=100_000) as (client, _):
        reading = GatedReading(monkeypatch)
        with ThreadPoolExecutor(2) as pool:
            read = [pool.submit(post, client, SCORE, long) for _ in "ab"]
            until(lambda: len(reading.begun) == 2)
            message = refusal(post(client, SCORE, long), 429, "overloaded")
            assert "SRUSERVE_MAX_QUEUE_BYTES" in message
            reading.go_on.set()
            assert [each.result().status_code for each in read] == [200, 200]
        for _ in range(3):  # one that fails gives its bytes back too
            refusal(post(client, SCORE, {"input": "\t" * 40_000}), 422, "invalid_text", "input")
        assert post(client, SCORE, long).status_code == 200


def test_a_body_counts_until_its_thread_is_through_even_if_its_client_left() -> None:
    over, begun = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        over.wait(60)

    limits = InputLimits(1, 1, 1, 1, 1, 1, queue_bytes=10 * FREE_BYTES, queue_seconds=0.0)

    async def read() -> None:
        with limits.count_body(6 * FREE_BYTES):
            await offload(True, work)

    async def talk() -> None:
        reading = asyncio.create_task(read())
        while not begun.is_set():
            await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(Overloaded):
            await read()
        with limits.count_body(FREE_BYTES):
            pass  # a short one gets in
        over.set()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await read()

    asyncio.run(asyncio.wait_for(talk(), 60))


@pytest.mark.parametrize("texts", [["a" * 40_000], ["a"] * 1024], ids=["long", "many"])
def test_the_bodies_of_clients_who_left_are_not_read(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, texts: list[str]
) -> None:
    long = {"input": texts}

    with serve("characters") as (client, application):
        reading = GatedReading(monkeypatch)
        left = [connect(client, SCORE, long) for _ in range(THREADS + 20)]
        until(lambda: len(reading.begun) == THREADS and POOL.waiting == 20)
        for connection in left:
            connection.close()
        until(lambda: POOL.waiting == 0)
        reading.go_on.set()
        until(lambda: application.lifecycle.active == 0)
        assert post(client, SCORE, long).status_code == 200
    assert len(reading.begun) <= (THREADS + 1) * len(texts)


def test_an_api_key_may_have_half_of_the_bytes_that_are_read(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = {"input": "a" * 40_000}

    def ask(key: str) -> httpx.Response:
        return client.post(SCORE, json=long, headers={"authorization": f"Bearer {key * 8}"})

    keys = json.dumps([{"key": key * 8, "tenant": key} for key in "ab"])
    with serve("characters", max_queue_bytes=100_000, api_keys=keys) as (client, application):
        reading = GatedReading(monkeypatch)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(ask, "a")
            until(lambda: len(reading.begun) == 1)
            refusal(ask("a"), 429, "overloaded")
            second = pool.submit(ask, "b")
            until(lambda: application.lifecycle.active == 2)
            reading.go_on.set()
            assert [first.result().status_code, second.result().status_code] == [200, 200]


def test_a_request_that_the_device_has_no_memory_for_is_503_with_retry_after(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(job: Job) -> None:
        raise OutOfDeviceMemory

    with serve("characters") as (client, application):
        with monkeypatch.context() as patch:
            engine = application.lifecycle.catalogue["characters"].engine
            patch.setattr(engine, "submit", full)
            reply = post(client, SCORE, {"input": "ab"})
            assert "send shorter inputs, or fewer at a time" in refusal(reply, 503, "out_of_memory")
            assert int(reply.headers["retry-after"]) >= 1
        assert post(client, SCORE, {"input": "ab"}).status_code == 200


def test_a_full_queue_is_429_with_retry_after_and_nobody_else_is_touched(
    serve: Serve, steps: Steps
) -> None:
    with serve("characters", max_queue_requests=1, max_batch_tokens=8) as (client, application):
        engine = application.lifecycle.catalogue["characters"].engine
        body = {"prompt": "a" * 100, "seed": 1, "max_tokens": 5}
        steps.hold(application)
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(post, client, COMPLETE, body)
            until(lambda: engine.waiting > 0)
            reply = post(client, SCORE, {"input": "ab"})
            assert "SRUSERVE_MAX_QUEUE_REQUESTS" in refusal(reply, 429, "overloaded")
            assert int(reply.headers["retry-after"]) >= 1
            steps.go_on()
            assert first.result().status_code == 200
        assert first.result().json()["choices"] == post(client, COMPLETE, body).json()["choices"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (SCORE, {"input": "ab"}),
        (SCORE, {"input": ["a" * 40_000] * 3}),
        (COMPLETE, {"prompt": ["a"] * 100, "max_tokens": 1}),
        (
            "/v2/models/characters/infer",
            {
                "inputs": [
                    {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}
                ]
            },
        ),
    ],
    ids=["short", "long", "many", "kserve"],
)
def test_the_queue_is_asked_twice_before_a_request_is_read_and_with_its_job(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    calls: list[str] = []
    for name in ("check", "submit", "admit"):
        ask = getattr(AdmissionQueue, name)

        def noted(*args: Any, name: str = name, ask: Any = ask) -> Any:
            calls.append(name)
            return ask(*args)

        monkeypatch.setattr(AdmissionQueue, name, noted)
    with serve("characters") as (client, _):
        reply = client.post(path, json=body)
        assert reply.status_code == 200, reply.text
    assert calls in (["check", "submit"], ["check", "admit"]), "queued, or answered at once"


@pytest.fixture(params=[60])
def unread(
    request: pytest.FixtureRequest, serve: Serve, task_folders: Path
) -> Iterator[tuple[socket.socket, httpx.Client]]:
    """A client that has asked for a million numbers and reads none, and another one.

    param: for how many seconds the server waits for it.
    """
    settings: dict[str, Any] = {"max_queue_bytes": 8 << 20, "keep_alive_seconds": request.param}
    with serve(model_folders=(task_folders / "reader",), **settings) as (client, application):
        connection = connect(client, ENCODE, {"input": [1] * 40_000})
        connection.recv(1, socket.MSG_PEEK)  # it is computed, and more than sockets hold
        with connection:
            yield connection, client
        until(lambda: application.lifecycle.active == 0)
        assert client.post(ENCODE, json={"input": [1] * 40_000}).status_code == 200


def test_replies_that_nobody_reads_are_bounded_and_given_up_when_their_client_leaves(
    unread: tuple[socket.socket, httpx.Client],
) -> None:
    _, client = unread
    message = refusal(client.post(ENCODE, json={"input": [1] * 10_000}), 429, "overloaded")
    assert "SRUSERVE_MAX_QUEUE_BYTES" in message
    assert client.post(ENCODE, json={"input": [1] * 100}).status_code == 200


@pytest.mark.parametrize("unread", [3], indirect=True)
def test_a_client_that_takes_nothing_of_its_reply_is_hung_up_on(
    unread: tuple[socket.socket, httpx.Client],
) -> None:
    connection, client = unread
    until(lambda: client.post(ENCODE, json={"input": [1] * 10_000}).status_code == 200)
    received = bytearray(b" ")
    try:
        while piece := connection.recv(1 << 20):
            received += piece
    except ConnectionResetError:
        pass
    assert b"\r\n\r\n" in received
    assert len(received) < body_end(received)


def test_a_client_that_reads_slowly_gets_all_of_its_reply(
    unread: tuple[socket.socket, httpx.Client],
) -> None:
    connection, client = unread
    whole = client.post(ENCODE, json={"input": [1] * 4}).json()["results"][0]["outputs"]
    received = bytearray()
    while b"\r\n\r\n" not in received or len(received) < body_end(received):
        received += (part := connection.recv(1 << 20))
        assert part
        time.sleep(0.15)
    outputs = json.loads(received.partition(b"\r\n\r\n")[2])["results"][0]["outputs"]
    assert len(outputs) == 40_000
    assert outputs[:4] == whole


def body_end(received: bytearray) -> int:
    head, _, _ = received.partition(b"\r\n\r\n")
    (length,) = (line for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    return len(head) + 4 + int(length.split()[1])


@pytest.mark.parametrize(
    ("path", "body", "max_numbers"),
    [(CLASSIFY, {"input": ["a"], "return_state": True}, 18),
     (CLASSIFY, {"input": ["a"]}, 166),
     (SCORE, {"input": ["a"], "more": True}, 20),
     (COMPLETE, {"prompt": ["a"], "max_tokens": 1, "return_state": True}, 20)],
)  # fmt: skip
def test_states_and_labels_count_in_what_a_reply_may_hold(
    serve: Serve, path: str, body: Any, max_numbers: int
) -> None:
    with serve("question", "characters", max_body_bytes=8000) as (client, _):
        field = "prompt" if path == COMPLETE else "input"
        within, beyond = (body | {field: body[field] * n} for n in (max_numbers, max_numbers + 1))
        assert post(client, path, within).status_code == 200
        message = refusal(post(client, path, beyond), 422, "input_too_long")
        assert "SRUSERVE_MAX_BODY_BYTES" in message


def test_a_job_must_have_begun_when_the_first_of_both_limits_ends() -> None:
    clock = HandClock()

    def limits(seconds: float) -> InputLimits:
        return InputLimits(1, 1, 1, 1, 1, 1, 1, queue_seconds=seconds, clock=clock)

    clock.now = 100.0
    assert limits(0.0).deadline(None) == 0.0  # never
    assert limits(0.0).deadline(2500) == 102.5
    assert limits(5.0).deadline(None) == 105.0
    assert limits(5.0).deadline(2500) == 102.5
    clock.now = 200.0
    assert limits(5.0).deadline(7000) == 205.0


def test_a_deadline_is_on_the_clock_of_the_server_which_is_the_engines(
    serve: Serve, steps: Steps
) -> None:
    clock, body = HandClock(), {"prompt": "a", "max_tokens": 1}
    with (
        serve("characters", clock=clock) as (client, application),
        ThreadPoolExecutor(2) as pool,
    ):
        engine = application.lifecycle.catalogue["characters"].engine
        steps.hold(application)
        first = pool.submit(post, client, COMPLETE, body)
        until(lambda: steps.waiting == 1)
        late = pool.submit(post, client, COMPLETE, body | {"timeout_ms": 1})
        until(lambda: engine.waiting == 2)
        clock.now += 0.002
        steps.go_on()
        assert first.result().status_code == 200
        refusal(late.result(), 504, "deadline_exceeded")
