"""A state's unfinished word is read, counted and returned with every input that continues it."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from sruserve.model.text.words import Words
from sruserve.server.app import Application
from sruserve.server.budget import Hold
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.job import Job
from sruserve.server.tasks.limits import InputLimits
from tests.server.conftest import Serve
from tests.server.observing import until
from tests.server.posting import COMPLETE, post, refusal
from tests.server.websocket.sockets import SECONDS, open_socket

CLASSIFY = "/v1/classify"
WORD = 30_000  # characters of an unfinished word
MAX_BODY_BYTES = 100_000  # bytes of a body

Running = tuple[httpx.Client, Application]


@pytest.fixture(scope="module")
def running(serve: Serve) -> Iterator[Running]:
    with serve("question", max_body_bytes=MAX_BODY_BYTES) as running:
        yield running


@pytest.fixture(scope="module")
def state(running: Running) -> Any:
    """A state that ends in a long word."""
    reply = post(running[0], CLASSIFY, {"input": "k" * WORD, "more": True})
    return reply.json()["results"][0]["state"]


class Reads:
    """Notes of each text that is read on which thread, and how many bytes count meanwhile."""

    def __init__(self, application: Application, patch: pytest.MonkeyPatch) -> None:
        self.threads: list[str] = []
        self.counted: list[int] = []
        self.costs: list[int] = []
        encode, submit = Words.encode, Engine.submit

        def noted(codec: Words, *args: Any) -> Any:
            self.threads.append(threading.current_thread().name.split()[0])
            self.counted.append(application.limits.reading.used)
            return encode(codec, *args)

        def submitted(engine: Engine, job: Job) -> None:
            self.costs.append(job.input_bytes)
            submit(engine, job)

        patch.setattr(Words, "encode", noted)
        patch.setattr(Engine, "submit", submitted)


def test_the_words_of_states_are_read_on_a_thread_and_counted(
    running: Running, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, application = running
    reads = Reads(application, monkeypatch)
    body = {"state": state, "input": ["x", "y", "z"]}
    assert post(client, CLASSIFY, body).status_code == 200
    assert reads.threads == ["offload"] * 3
    assert min(reads.counted) >= len(state) + 3 * WORD
    assert min(reads.costs) >= len(state) + 3 * WORD
    until(lambda: application.limits.reading.used == 0)


def test_short_words_are_read_at_once(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    client, application = running
    reply = post(client, CLASSIFY, {"input": "wh", "more": True})
    reads = Reads(application, monkeypatch)
    body = {"state": reply.json()["results"][0]["state"], "input": "at"}
    assert post(client, CLASSIFY, body).status_code == 200
    assert reads.threads
    assert "offload" not in reads.threads


def test_a_word_is_continued_by_no_more_inputs_than_a_body_could_spell(
    running: Running, state: Any
) -> None:
    client, _ = running
    body = {"state": state, "input": ["x"] * 3}
    assert post(client, CLASSIFY, body).status_code == 200
    message = refusal(post(client, CLASSIFY, body | {"input": ["x"] * 4}), 422, "input_too_long")
    assert f"{4 * WORD} characters" in message


def test_a_reply_holds_no_more_words_in_its_states_than_other_numbers(
    running: Running, state: Any
) -> None:
    client, _ = running
    body = {"state": state, "more": True}
    assert post(client, CLASSIFY, body | {"input": "x"}).status_code == 200
    message = refusal(post(client, CLASSIFY, body | {"input": ["x", "y"]}), 422, "input_too_long")
    assert "send chunks with `state`, or fewer inputs" in message


def test_what_a_constraint_has_read_counts_in_each_state(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []
    count = InputLimits.count_reply

    def noted(limits: InputLimits, numbers: int) -> Hold:
        counted.append(numbers)
        return count(limits, numbers)

    monkeypatch.setattr(InputLimits, "count_reply", noted)
    body = {"prompt": "", "max_tokens": 1, "n": 10, "return_state": True}
    with serve("characters") as (client, _):
        for spelled in (4, 84):
            first = {"prompt": "a", "regex": "[ab]{4}([ab]{80})*", "max_tokens": spelled}
            reply = post(client, COMPLETE, first | {"return_state": True})
            state = reply.json()["choices"][0]["state"]
            again = post(client, COMPLETE, body | {"state": state, "regex": first["regex"]})
            assert again.status_code == 200
    assert counted[3] - counted[1] == 10 * 80 // 4


def test_what_a_constraint_has_read_counts_in_the_queue(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve("characters") as (client, application):
        regex = {"regex": "[ab]{4000}", "max_tokens": 3900}
        reply = post(client, COMPLETE, {"prompt": "a", "return_state": True, **regex})
        state = reply.json()["choices"][0]["state"]
        reads = Reads(application, monkeypatch)
        again = {"prompt": ["", ""], "state": state, **regex, "max_tokens": 1}
        assert post(client, COMPLETE, again).status_code == 200
    assert min(reads.costs) >= len(state) + 2 * 3900


def test_a_stream_refuses_several_inputs_before_it_reads_any(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, application = running
    with open_socket(client) as socket:
        socket.send(json.dumps({"model": "question", "input": "k" * 100}))
        socket.recv(SECONDS)
        reads = Reads(application, monkeypatch)
        socket.send(json.dumps({"input": ["x"] * 2, "more": False}))
        assert "one input at a time" in json.loads(socket.recv(SECONDS))["error"]["message"]
        assert not reads.threads
        socket.send(json.dumps({"input": "x", "more": False}))
        assert json.loads(socket.recv(SECONDS))["usage"] == {"steps": 1}
