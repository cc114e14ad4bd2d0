"""Texts in chunks whose translations are sent while they are written."""

import json
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import Serve
from tests.server.http.json_requests import connect
from tests.server.observing import until
from tests.server.translation.asking import ask, pieces, sources, stream, text
from tests.server.translation.conftest import ONE_WAY, Running, engine_of
from tests.server.translation.held_searches import Searches
from tests.server.translation.models import save_random_system
from tests.server.translation.test_leaving import is_free

NAME = "sru-one-way"


@pytest.fixture
def client(both: Running) -> httpx.Client:
    return both[0]


def streamed(client: httpx.Client, model: str, **fields: Any) -> tuple[str, dict[str, Any], int]:
    """What one chunk adds to one text, the last entry that has its score, and the steps."""
    *events, last = stream(client, model, scores=True, **fields)
    parts = [part for event in events for part in event["results"]]
    assert not any("state" in part or part["index"] for part in parts)
    assert len(last["results"]) == bool(fields.get("more"))
    (end,) = last["results"] or parts[-1:]
    return "".join(part["text"] for part in parts), end, last["usage"]["steps"]


def joined(
    client: httpx.Client, model: str, chunks: list[str], streams: list[bool], **fields: Any
) -> tuple[Any, ...]:
    """The translation of a text chunk by chunk, some of them streamed, its end and its steps."""
    written, steps, state = "", 0, None
    for number, chunk in enumerate(chunks):
        body = {"input": chunk, "more": number + 1 < len(chunks)}
        body |= fields if state is None else {"state": state}
        if streams[number]:
            added, end, more = streamed(client, model, **body)
        else:
            reply = client.post("/v1/translate", json={"model": model, "scores": True, **body})
            (end,), more = reply.json()["results"], reply.json()["usage"]["steps"]
            added = end["text"]
        written, steps, state = written + added, steps + more, end.get("state")
        assert (state is not None) == body["more"]
    return written, end["finish_reason"], end["score"], end["log_probability"], steps


@pytest.mark.parametrize("name", ONE_WAY)
def test_any_split_adds_up_to_the_whole_whether_its_chunks_are_streamed_or_not(
    client: httpx.Client, name: str
) -> None:
    draw, reasons = random.Random(name), set()
    for ids in sources(8, longest=14, seed=7):
        options = {"wait_k": draw.choice((1, 2, 5, 1000)), "max_tokens": draw.randint(1, 30)}
        chunks = pieces(text(ids), draw)
        streams = [draw.random() < 0.7 for _ in chunks]
        whole = joined(client, name, [text(ids)], [False], **options)
        assert joined(client, name, [text(ids)], [True], **options) == whole
        assert joined(client, name, chunks, streams, **options)[:-1] == whole[:-1]
        reasons.add(whole[1])
    assert reasons == {"stop", "length"}


def test_a_character_whose_bytes_are_written_for_several_chunks_is_sent_once_and_whole(
    serve: Serve, tmp_path: Path
) -> None:
    path = save_random_system(tmp_path / "bytes", "gru-one-way", 3, -9.0, writes_bytes=True).path
    draw, seen = random.Random(1), ""
    with serve(str(path)) as (client, _):
        for ids in sources(6, longest=14):
            chunks = [f"a{i} " for i in ids]
            streams = draw.choices([False, True], k=len(chunks))
            options = {"wait_k": 1, "max_tokens": 12}
            whole = joined(client, "bytes", ["".join(chunks)], [False], **options)
            assert joined(client, "bytes", chunks, streams, **options)[:-1] == whole[:-1]
            seen += whole[0]
    assert {"é", "\ufffd"} <= set(seen)


def test_tokens_are_sent_before_the_next_step_and_a_client_that_leaves_frees_everything(
    both: Running, searches: Searches
) -> None:
    client, application = both
    engine = engine_of(application, NAME)
    searches.hold()
    body = {"model": NAME, "input": "a4 a5 a6 a7 ", "wait_k": 2, "more": True, "stream": True}
    connection = connect(client, "/v1/translate", body)
    assert searches.waiting.wait(60)
    searches.one_step()
    assert searches.waiting.wait(60)
    received = b""
    while b"}\n\n" not in received:
        received += connection.recv(4096)
    (part,) = json.loads(received.partition(b"data: ")[2].partition(b"\n")[0])["results"]
    assert part["text"] == "b14"
    assert engine.claims.used
    connection.close()
    until(lambda: all(job.withdrawn for job in engine._open))
    searches.go_on()
    until(lambda: is_free(engine))


def test_the_last_event_has_the_state_of_each_text_that_continues(client: httpx.Client) -> None:
    (ended,) = ask(client, NAME, input="a9 a8 ", wait_k=2, max_tokens=1, more=True)
    body = {"wait_k": 2, "more": True, "state": [None, ended["state"], None]}
    *events, last = stream(client, NAME, input=["a4 a5 ", "a6 ", "a"], **body)
    parts = [part for event in events for part in event["results"]]
    assert "".join(part["text"] for part in parts if part["index"] == 0) == "b14 b3"
    assert [part["finish_reason"] for part in parts if part["index"] == 1] == ["length"]
    assert not any(part["index"] == 2 for part in parts)
    assert [part["index"] for part in last["results"]] == [0, 1, 2]
    assert [part["text"] for part in last["results"]] == ["", "", ""]
    assert [part["score"] for part in last["results"]] == [None] * 3
    assert last["usage"]["steps"] > 0
    states = [part["state"] for part in last["results"]]
    *events, last = stream(client, NAME, input=["a7", "a7", "4 a5"], state=states)
    assert last["results"] == []
    (whole,) = ask(client, NAME, input="a4 a5", wait_k=2)
    third = [part for event in events for part in event["results"] if part["index"] == 2]
    assert "".join(part["text"] for part in third) == whole["text"]
