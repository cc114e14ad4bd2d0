"""WebSockets, through the client of the package `websockets`, and as raw bytes."""

import asyncio
import contextlib
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import httpx
import pytest
import websockets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection

from sruserve.server.app import Application
from sruserve.server.http.uvicorn_http import HttpProtocol
from sruserve.server.json_output import json_bytes
from sruserve.server.websocket import session as frames
from sruserve.server.websocket.uvicorn_websocket import WebSocketProtocol
from tests.memory import malloc_bytes
from tests.server.conftest import TEXT, Serve
from tests.server.http.test_clients_that_leave import metric, until
from tests.server.websocket.sockets import SECONDS

T = TypeVar("T")

GENERATE = {"model": "characters", "prompt": "To be", "seed": 3}


def run(talk: Callable[[], Awaitable[T]]) -> T:
    return asyncio.run(asyncio.wait_for(talk(), SECONDS))


@contextlib.asynccontextmanager
async def connected(client: httpx.Client, **options: Any) -> AsyncIterator[ClientConnection]:
    url = str(client.base_url).replace("http", "ws", 1).rstrip("/") + "/v1/stream"
    options = {"open_timeout": SECONDS, "compression": None, "ping_interval": None} | options
    async with websockets.connect(url, **options) as connection:
        yield connection


async def ask(connection: ClientConnection, **frame: Any) -> dict[str, Any]:
    """Send a frame and take its one reply."""
    await connection.send(json.dumps(frame))
    return await told(connection)


async def told(connection: ClientConnection) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(await connection.recv())
    return reply


async def completed(connection: ClientConnection, **frame: Any) -> tuple[str, dict[str, Any]]:
    """The whole text that a prompt is continued with, and the last piece."""
    await connection.send(json.dumps(frame))
    text = ""
    while True:
        piece = await told(connection)
        (choice,) = piece["choices"]
        text += choice["text"]
        if choice["finish_reason"] is not None:
            return text, piece


def over_http(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cuts=st.lists(st.integers(1, len(TEXT) - 1), max_size=5, unique=True))
def test_any_split_of_a_text_gives_what_the_whole_gives(
    client: httpx.Client, cuts: list[int]
) -> None:
    (whole,) = over_http(client, "/v1/classify", model="question", input=TEXT)["results"]

    async def talk() -> dict[str, Any]:
        async with connected(client) as connection:
            await ask(connection, model="question")
            at = 0
            for cut in sorted(cuts):
                await ask(connection, input=TEXT[at:cut])
                at = cut
            return await ask(connection, input=TEXT[at:], more=False)

    assert run(talk)["scores"] == whole["scores"]


def test_features_are_read_step_by_step(client: httpx.Client) -> None:
    steps = [[0.1 * i, *[0.5] * 7] for i in range(6)]
    (whole,) = over_http(client, "/v1/classify", model="sensor", features=steps)["results"]

    async def talk() -> dict[str, Any]:
        async with connected(client) as connection:
            reply = await ask(connection, model="sensor", features=steps[:1])
            for step in steps[1:]:
                reply = await ask(connection, features=[step])
            return reply

    assert run(talk)["scores"] == whole["scores"]


def test_tags_and_outputs_go_on_from_frame_to_frame(tasks: httpx.Client) -> None:
    steps = [[0.2, 0.4], [0.6, 0.1], [0.3, 0.3]]
    (whole,) = over_http(tasks, "/v1/encode", model="small", features=steps)["results"]
    (tagged,) = over_http(tasks, "/v1/tag", model="letters", input="abcdef")["results"]

    async def talk() -> tuple[list[Any], list[Any]]:
        async with connected(tasks) as one, connected(tasks) as two:
            outputs = [await ask(one, model="small", features=steps[:2])]
            outputs.append(await ask(one, features=steps[2:]))
            tags = [await ask(two, model="letters", input="abc"), await ask(two, input="def")]
            return outputs, tags

    outputs, tags = run(talk)
    assert [row for reply in outputs for row in reply["outputs"]] == whole["outputs"]
    labels = [token["label"] for reply in tags for token in reply["tokens"]]
    assert labels == [token["label"] for token in tagged["tokens"]]


def test_a_state_told_at_the_end_continues_over_http_and_in_another_socket(
    client: httpx.Client,
) -> None:
    body = GENERATE | {"max_tokens": 40}
    whole = over_http(client, "/v1/completions", **body)["choices"][0]["text"]

    async def talk() -> tuple[str, str, str]:
        async with connected(client) as connection:
            first, _ = await completed(connection, **GENERATE, max_tokens=15)
            asked = (await ask(connection, op="state"))["state"]
            state = (await ask(connection, op="close"))["state"]
            with pytest.raises(websockets.ConnectionClosedOK):
                await connection.recv()
            assert connection.close_code == 1000
            assert asked
            assert state
        async with connected(client) as connection:
            rest, last = await completed(
                connection, model="characters", state=state, max_tokens=25, return_state=True
            )
            again, _ = await completed(connection, max_tokens=5)
        assert last["usage"] == {**last["usage"], "completion_tokens": 25}
        end = over_http(
            client, "/v1/completions", model="characters", prompt="", max_tokens=5,
            state=last["choices"][0]["state"],
        )  # fmt: skip
        assert end["choices"][0]["text"] == again
        return first, rest, state

    first, rest, state = run(talk)
    assert first + rest == whole
    body = {"model": "characters", "prompt": "", "state": state, "max_tokens": 25}
    assert over_http(client, "/v1/completions", **body)["choices"][0]["text"] == rest


def test_a_language_model_scores_inputs_and_completes_prompts_in_one_stream(
    client: httpx.Client,
) -> None:
    whole = over_http(client, "/v1/score", model="characters", input="To be, or not")["results"][0]
    longer = GENERATE | {"prompt": "To be, or not", "max_tokens": 9}
    text = over_http(client, "/v1/completions", **longer)["choices"][0]["text"]

    async def talk() -> None:
        async with connected(client) as connection:
            first = await ask(connection, model="characters", input="To be, ")
            second = await ask(connection, input="or not")
            total = first["log_likelihood"] + second["log_likelihood"]
            assert total == pytest.approx(whole["log_likelihood"])
            assert (await completed(connection, max_tokens=9, seed=3))[0] == text

    run(talk)


def test_frames_are_answered_in_their_order_with_their_ids(client: httpx.Client) -> None:
    async def talk() -> None:
        async with connected(client) as connection:
            for i in range(100):  # more than wait at a time
                await connection.send(json.dumps({"id": i, **({} if i else {"model": "question"})}
                                                 | {"input": "a b "}))  # fmt: skip
            replies = [await told(connection) for _ in range(100)]
            assert [reply["id"] for reply in replies] == list(range(100))
            assert all("label" in reply for reply in replies)

    run(talk)


def test_two_streams_do_not_see_each_others_state(client: httpx.Client) -> None:
    texts = [f"{word} is it from a to {word}" for word in ("who", "what", "where", "when")]
    alone = [
        over_http(client, "/v1/classify", model="question", input=text)["results"][0]["scores"]
        for text in texts
    ]

    async def talk(text: str) -> dict[str, Any]:
        async with connected(client) as connection:
            await ask(connection, model="question")
            for letter in text:
                await ask(connection, input=letter)
            last = await ask(connection, input="", more=False)
            return dict(last["scores"])

    async def together() -> list[dict[str, Any]]:
        return await asyncio.gather(*map(talk, texts))

    assert run(together) == alone


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
            replies = [await told(connection)]
            while replies[-1].get("id") != "the end":
                replies.append(await told(connection))
                assert replies[-1].get("error", {}).get("type") != "server_error", frames
            assert len(replies) > len(frames)

    with contextlib.suppress(websockets.ConnectionClosedOK):  # one of them said so
        run(talk)


def test_hundreds_of_sockets_opened_at_once_are_all_answered_and_http_between_them(
    serve: Serve,
) -> None:
    async def talk(client: httpx.Client) -> list[str]:
        async def one(i: int) -> str:
            async with connected(client) as connection:
                text, _ = await completed(connection, **GENERATE, max_tokens=10 + i % 3)
                return text

        texts = await asyncio.gather(*map(one, range(300)))
        while answered <= 3:  # between sockets, and not behind all of them
            texts += await asyncio.gather(*map(one, range(300)))
        return texts

    answered = 0
    with serve("characters") as (client, application), ThreadPoolExecutor(1) as pool:
        talking = pool.submit(run, lambda: talk(client))
        while not talking.done():  # not from the loop of the sockets, which has much to do itself
            assert client.get("/readyz").status_code == 200
            answered += 1
        longest = max(texts := talking.result(), key=len)
        assert all(longest.startswith(text[:-4]) and text for text in texts)
        engine = application.lifecycle.catalogue["characters"].engine
        until(lambda: engine.rows == 0 and metric(client, "sru_sockets") == 0)


def test_sockets_and_their_frames_are_counted(client: httpx.Client) -> None:
    def frames(outcome: str) -> float:
        labels = f'model="question",outcome="{outcome}",route="/v1/stream"'
        return metric(client, f"sru_requests_total{{{labels}}}")

    before = frames("ok"), frames("invalid")

    async def talk() -> None:
        async with connected(client) as one, connected(client):
            until(lambda: metric(client, "sru_sockets") == 2)
            await ask(one, model="question")
            await ask(one, input="a")
            await ask(one, input=1)

    run(talk)
    until(lambda: metric(client, "sru_sockets") == 0)
    until(lambda: (frames("ok"), frames("invalid")) == (before[0] + 2, before[1] + 1))


def test_a_client_that_vanishes_frees_all_that_it_used(
    client: httpx.Client, application: Application
) -> None:
    engine = application.lifecycle.catalogue["characters"].engine

    async def talk() -> None:
        for _ in range(3):
            async with connected(client) as connection:
                await connection.send(json.dumps(GENERATE | {"max_tokens": 100_000}))
                await connection.send(json.dumps({"max_tokens": 100_000}))
                await told(connection)
                connection.transport.abort()

    run(talk)
    until(lambda: engine.running == 0 and engine.rows == 0 and application.lifecycle.active == 0)
    until(lambda: metric(client, "sru_sockets") == 0)


class Raw:
    """A client that speaks the protocol by hand."""

    def __init__(self, client: httpx.Client, head: bytes = b"", body: bytes = b"") -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(SECONDS)
        self.socket.connect((client.base_url.host, client.base_url.port or 0))
        self.socket.sendall(
            b"GET /v1/stream HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            + head + b"\r\n" + body
        )  # fmt: skip

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def received(self, ending: bytes) -> bytes:
        """All that comes up to `ending`, or to the end."""
        got = b""
        while ending not in got and (part := self.socket.recv(65536)):
            got += part
        return got


def frame(data: bytes, opcode: int = 1, last: bool = True) -> bytes:
    """A frame of a client."""
    assert len(data) < 65536
    if len(data) > 125:
        length = struct.pack("!BH", 0x80 | 126, len(data))
    else:
        length = struct.pack("!B", 0x80 | len(data))
    return bytes([(0x80 if last else 0) | opcode]) + length + bytes(4) + data


ASK = frame(json.dumps({"model": "question", "input": "a b", "more": False}).encode())


@pytest.mark.parametrize("early", [True, False], ids=["with the handshake", "after it"])
def test_a_frame_may_come_with_the_handshake(client: httpx.Client, early: bool) -> None:
    with Raw(client, body=ASK if early else b"") as raw:
        if not early:
            assert raw.received(b"\r\n\r\n").startswith(b"HTTP/1.1 101")
            raw.socket.sendall(ASK)
        assert b'"label":' in raw.received(b'"usage"')


def test_a_message_may_come_in_very_many_pieces(client: httpx.Client) -> None:
    text = json.dumps({"model": "question", "input": "a b", "more": False}).encode()
    pieces = [frame(text[:1], 1, last=False)]
    for byte in text[1:]:
        pieces += [frame(b"", 0, last=False)] * 500 + [frame(bytes([byte]), 0, last=False)]
        pieces += [frame(b"ping", 9)]
    with Raw(client) as raw:
        raw.received(b"\r\n\r\n")
        raw.socket.sendall(b"".join([*pieces, frame(b"", 0)]))
        assert b'"label":' in raw.received(b'"usage"')


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(b"x", 3), 1002),
        (frame(b"x", 0), 1002),
        (frame(b"x" * 126, 9), 1002),
        (b"\x81\xff" + struct.pack("!Q", 1 << 40), 1009),
        (b"\x81\x01x", 1002),
    ],
    ids=["unknown kind", "end of nothing", "long ping", "too big", "not masked"],
)
def test_what_is_no_websocket_is_told_so_and_closed(
    client: httpx.Client, data: bytes, code: int
) -> None:
    with Raw(client) as raw:
        raw.received(b"\r\n\r\n")
        raw.socket.sendall(data + ASK * 3)
        received = raw.received(b"never")
        assert struct.pack("!H", code) in received
    until(lambda: metric(client, "sru_sockets") == 0)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"sec-websocket-key: another\r\n", b"400"),
        (b"".join(b"x%d: y\r\n" % i for i in range(260)), b"431"),
    ],
    ids=["two keys", "many headers"],
)
def test_a_wrong_handshake_is_refused_at_once(
    client: httpx.Client, head: bytes, status: bytes
) -> None:
    with Raw(client, head) as raw:
        assert raw.received(b"never").startswith(b"HTTP/1.1 " + status)


def test_an_offer_behind_a_running_request_is_ignored(client: httpx.Client) -> None:
    body = json.dumps({"model": "characters", "prompt": "a", "max_tokens": 2000}).encode()
    request = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b"
    offer = (
        b"GET /v1/stream HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\r\n"
    )
    address = (client.base_url.host, client.base_url.port or 0)
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(request % (len(body), body) + offer)
        received = b""
        while b"HTTP/1.1 4" not in received:
            received += (got := connection.recv(65536))
            assert got
        assert received.startswith(b"HTTP/1.1 200")


def test_a_client_that_never_reads_is_made_to_wait_and_then_hung_up_on(serve: Serve) -> None:
    with serve("characters", keep_alive_seconds=1) as (client, application), Raw(client) as raw:
        engine = application.lifecycle.catalogue["characters"].engine
        raw.received(b"\r\n\r\n")
        before = malloc_bytes()
        raw.socket.sendall(frame(b'{"model": "characters", "input": "a"}'))
        raw.socket.settimeout(0.5)
        flood = (frame(os.urandom(100), 9) + frame(b'{"op": "state"}')) * 500
        sent = 0
        with contextlib.suppress(OSError):  # it is not read, so it stops; then it is hung up on
            while sent < 64 << 20:
                sent += raw.socket.send(flood)
        assert sent < 32 << 20, "everything was taken"
        reply = client.post("/v1/score", json={"model": "characters", "input": "To be"})
        assert reply.status_code == 200
        assert malloc_bytes() - before < 32 << 20
        until(lambda: engine.rows == 0 and application.lifecycle.active == 0)


def test_with_api_keys_the_handshake_needs_one(serve: Serve) -> None:
    with serve("question", api_keys="one:first-key,two:second-key") as (client, _):

        async def talk() -> None:
            for headers in ({}, {"authorization": "Bearer wrong-key"}):
                with pytest.raises(websockets.InvalidStatus) as refused:
                    async with connected(client, additional_headers=headers):
                        pass
                assert refused.value.response.status_code == 401
                body = json.loads(refused.value.response.body or b"{}")
                assert body["error"]["code"] == "invalid_api_key"
            first = {"authorization": "Bearer first-key"}
            async with connected(client, additional_headers=first) as connection:
                await ask(connection, model="question", input="a b")
                state = (await ask(connection, op="state"))["state"]
            second = {"authorization": "Bearer second-key"}
            async with connected(client, additional_headers=second) as connection:
                error = (await ask(connection, model="question", state=state))["error"]
                assert error["code"] == "state_wrong_tenant"

        run(talk)


@pytest.mark.parametrize("name", ["x-long", "authorization"])
def test_an_open_socket_keeps_no_head(
    client: httpx.Client, application: Application, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    long = "a" * 50_000
    opened: list[HttpProtocol] = []
    upgrade = HttpProtocol.handle_websocket_upgrade

    def see(protocol: HttpProtocol) -> None:
        opened.append(protocol)
        upgrade(protocol)

    async def talk() -> None:
        async with connected(client, additional_headers={name: long}) as connection:
            assert "error" not in await ask(connection, model="question", input="a")
            (http,) = opened
            socket = http.transport.get_protocol()
            assert isinstance(socket, WebSocketProtocol)
            assert not any((http.headers, http.scope, list(socket.request.headers)))
            assert socket.scope["headers"] == []
            sockets = [each for each in application._sockets._open if each._connection is socket]
            assert [each._authorization for each in sockets] == [None]

    monkeypatch.setattr(HttpProtocol, "handle_websocket_upgrade", see)
    run(talk)


def test_the_limits_of_an_api_key_hold_in_sockets(serve: Serve) -> None:
    entry = {"key": "a-long-key", "tenant": "a", "state_bytes": 5000, "requests_per_second": 20}
    headers = {"authorization": "Bearer a-long-key"}
    with serve("question", api_keys=json.dumps([entry])) as (client, _):

        async def talk() -> None:
            async with connected(client, additional_headers=headers) as one:
                assert (await ask(one, model="question"))["task"] == "classify"
                async with connected(client, additional_headers=headers) as two:
                    error = (await ask(two, model="question"))["error"]
                    assert error["code"] == "state_quota_exceeded"
            async with connected(client, additional_headers=headers) as three:
                while "error" in (reply := await ask(three, model="question")):
                    assert reply["error"]["code"] == "state_quota_exceeded"  # one is leaving
                codes = [await ask(three, input="a") for _ in range(30)]
                limited = [reply for reply in codes if "error" in reply]
                assert limited[0]["error"]["code"] == "rate_limited"
                assert limited[0]["retry_after"] == 1

        run(talk)


def test_the_unfinished_word_of_a_socket_counts_in_its_tenants_quota(serve: Serve) -> None:
    entry = {"key": "a-long-key", "tenant": "a", "state_bytes": 9000}
    headers = {"authorization": "Bearer a-long-key"}
    with serve("question", api_keys=json.dumps([entry])) as (client, application):

        async def talk() -> None:
            async with connected(client, additional_headers=headers) as socket:
                assert "usage" in await ask(socket, input="How far is ")
                error = (await ask(socket, input="x" * 3000))["error"]
                assert error["code"] == "state_quota_exceeded"
                assert "usage" in await ask(socket, input="it ")  # behind the frame before

        run(talk)
        tenant = application.lifecycle.tenants.authenticate(headers["authorization"])
        until(lambda: tenant.state_budget.held == 0)


def test_there_is_one_path_for_sockets(client: httpx.Client) -> None:
    url = str(client.base_url).replace("http", "ws", 1) + "/v1/other"

    async def talk() -> int:
        with pytest.raises(websockets.InvalidStatus) as refused:
            await websockets.connect(url)
        return refused.value.response.status_code

    assert run(talk) == 404


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No client can write to the log."""
    yield
    assert not caplog.get_records("call")


@pytest.mark.parametrize("more", [b"{}", b" " * 100_000], ids=["short frames", "long frames"])
def test_a_client_that_leaves_with_more_frames_sent_is_seen(
    client: httpx.Client, application: Application, more: bytes
) -> None:
    """More than the server takes before the first one is answered."""
    engine = application.lifecycle.catalogue["characters"].engine

    async def talk() -> None:
        async with connected(client) as connection:
            await connection.send(json.dumps(GENERATE | {"max_tokens": 100_000}))
            await asyncio.to_thread(until, lambda: engine.running == 1)
            for _ in range(40):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(connection.send(more), 0.2)
            assert engine.running == 1
            connection.transport.abort()

    run(talk)
    until(lambda: engine.running == 0 and engine.rows == 0)
    until(lambda: application.lifecycle.active == 0)


def test_an_invalid_frame_while_a_reply_is_made_ends_the_socket_and_is_not_logged(
    client: httpx.Client, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, protocols = json_bytes, []
    opened = WebSocketProtocol.handle_connect

    def see(protocol: WebSocketProtocol, event: Any) -> None:
        protocols.append(protocol)
        opened(protocol, event)

    def make(told: dict[str, Any]) -> bytes:
        protocols[0].data_received(frame(b"x", 7))
        return made(told)

    monkeypatch.setattr(WebSocketProtocol, "handle_connect", see)
    monkeypatch.setattr(frames, "json_bytes", make)
    with Raw(client, body=ASK) as raw:
        raw.received(struct.pack("!BBH", 0x88, 16, 1002))  # the close frame that says why
        until(lambda: application.lifecycle.active == 0)
