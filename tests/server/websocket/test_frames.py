"""Every frame has an answer, in order, and a wrong one changes nothing."""

import contextlib
import json
from typing import Any

import httpx
import pytest
import websockets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.websocket.talks import ask, connected, next_frame, over_http, run


def test_frames_are_answered_in_their_order_with_their_ids(client: httpx.Client) -> None:
    async def talk() -> None:
        async with connected(client) as connection:
            for i in range(100):  # more than wait at a time
                await connection.send(json.dumps({"id": i, **({} if i else {"model": "question"})}
                                                 | {"input": "a b "}))  # fmt: skip
            replies = [await next_frame(connection) for _ in range(100)]
            assert [reply["id"] for reply in replies] == list(range(100))
            assert all("label" in reply for reply in replies)

    run(talk)


BAD: list[tuple[dict[str, Any], str, str | None]] = [
    ({}, "invalid_request", None),
    ({"input": 3}, "invalid_request", "input"),
    ({"inputs": "a"}, "invalid_request", "inputs"),
    ({"input": ["a", "b"]}, "invalid_request", None),
    ({"features": [[1.0]]}, "invalid_request", "features"),
    ({"op": "fly"}, "invalid_request", "op"),
    ({"op": "state", "input": "a"}, "invalid_request", "input"),
    ({"model": "question", "input": "a"}, "invalid_request", "model"),
    ({"state": "x"}, "invalid_request", "state"),
    ({"id": [1]}, "invalid_request", "id"),
    ({"id": "x" * 101}, "invalid_request", "id"),
    ({"input": "a", "pair": "b"}, "invalid_request", "pair"),  # which no other client may notice
]


@pytest.mark.parametrize(("frame", "code", "param"), BAD, ids=lambda value: str(value)[:40])
def test_a_wrong_frame_is_explained_and_changes_nothing(
    client: httpx.Client, frame: dict[str, Any], code: str, param: str | None
) -> None:
    (whole,) = over_http(client, "/v1/classify", model="question", input="a b")["results"]

    async def talk() -> None:
        async with connected(client) as connection:
            await ask(connection, model="question", input="a ")
            error = (await ask(connection, **frame))["error"]
            assert (error["code"], error["param"]) == (code, param)
            reply = await ask(connection, input="b", more=False)
            assert reply["scores"] == whole["scores"]

    run(talk)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ({"model": "nobody"}, "model_not_found"),
        ({"model": "whole"}, "cannot_stream"),
        ({"model": "question", "preset": "x"}, "preset_not_found"),
        ({"model": "question", "state": "x" * 80}, "state_tampered"),
        ({"model": "characters", "prompt": "a", "n": 2}, "invalid_request"),
        ({"model": "characters", "prompt": "a", "stream": False}, "invalid_request"),
        ({"model": "characters", "prompt": ""}, "empty_input"),
        ({"input": "a"}, "invalid_request"),
    ],
)
def test_a_stream_that_cannot_begin_may_be_begun_otherwise(
    client: httpx.Client, frame: dict[str, Any], code: str
) -> None:
    async def talk() -> None:
        async with connected(client) as connection:
            assert (await ask(connection, id=7, **frame)) | {"error": None} == {
                "id": 7, "error": None,
            }  # fmt: skip
            assert (await ask(connection, **frame))["error"]["code"] == code
            assert (await ask(connection, model="question", input="a b", more=False))["label"]

    run(talk)


_NUMBERS = st.integers(max_value=300) | st.just(1 << 70) | st.floats()
_VALUES = st.recursive(
    st.none() | st.booleans() | _NUMBERS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
_FIELDS = st.sampled_from(
    ["id", "op", "model", "state", "preset", "input", "features", "prompt", "more", "max_tokens",
     "seed", "n", "stop", "stream", "logprobs", "pair", "return_state", "timeout_ms", "x"]
)  # fmt: skip
_NAMES = st.sampled_from(["question", "sensor", "characters", "ids", "whole"])
_FRAMES = (
    st.binary(max_size=60)
    | st.text(max_size=60)
    | _VALUES.map(json.dumps)
    | st.dictionaries(_FIELDS, _VALUES, max_size=4).map(json.dumps)
    | st.builds(lambda name, rest: json.dumps({**rest, "model": name}), _NAMES,
                st.dictionaries(_FIELDS, _VALUES, max_size=3))
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(frames=st.lists(_FRAMES, min_size=1, max_size=8))
def test_every_frame_has_an_answer_whatever_it_is(
    client: httpx.Client, frames: list[str | bytes]
) -> None:
    async def talk() -> None:
        async with connected(client) as connection:
            for frame in frames:
                await connection.send(frame)
            await connection.send('{"id": "the end", "op": "flee"}')
            replies = [await next_frame(connection)]
            while replies[-1].get("id") != "the end":
                replies.append(await next_frame(connection))
                assert replies[-1].get("error", {}).get("type") != "server_error", frames
            assert len(replies) > len(frames)

    with contextlib.suppress(websockets.ConnectionClosedOK):  # one of them said so
        run(talk)
