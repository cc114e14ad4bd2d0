"""A client that goes away: its work stops, its row is free again, and it is counted once."""

import gc
import json
import socket
import struct
import threading
import time
from contextlib import suppress
from typing import Any

import httpx
import pytest

from sruserve.server.app import Application
from sruserve.server.http.uvicorn_http import HttpProtocol
from tests.server.conftest import Leftovers, Serve
from tests.server.http import raw_requests
from tests.server.http.json_requests import connect
from tests.server.http.raw_requests import UPGRADE, head
from tests.server.observing import metric, until


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_completion_stops_when_its_client_leaves(
    client: httpx.Client, application: Application, stream: bool
) -> None:
    engine = application.lifecycle.catalogue.with_states("characters").engine
    cancelled = 'sru_requests_total{model="characters",outcome="cancelled",route="/v1/completions"}'
    gone = 'sru_client_disconnects_total{model="characters"}'
    until(lambda: application.lifecycle.active == 0)  # requests of earlier tests are counted
    before = metric(client, cancelled), metric(client, gone)
    body = {"model": "characters", "prompt": "a", "max_tokens": 100_000, "stream": stream}
    connection = connect(client, "/v1/completions", body)
    until(lambda: engine.running == 1)
    if stream:
        assert b"200 OK" in connection.recv(4096)
    connection.close()
    until(lambda: engine.running == 0 and engine.rows == 0)
    until(lambda: application.lifecycle.active == 0)
    assert (metric(client, cancelled), metric(client, gone)) == (before[0] + 1, before[1] + 1)


COMPLETION = {"model": "characters", "prompt": "a", "max_tokens": 100_000}
SCORE = head(20) + b'{"input": "To be",'


@pytest.mark.parametrize(
    "queued",
    [b"", SCORE, SCORE + b" }", SCORE + b" }" + SCORE, UPGRADE],
    ids=["nothing", "a beginning", "a request", "a request and a beginning", "a handshake"],
)
def test_a_client_that_leaves_with_queued_requests_leaves_nothing_in_memory(
    client: httpx.Client, application: Application, leftovers: Leftovers, queued: bytes
) -> None:
    engine, connections = (
        application.lifecycle.catalogue.with_states("characters").engine,
        application.connections,
    )
    before = connections.open
    connection = connect(client, "/v1/completions", COMPLETION)
    until(lambda: engine.running == 1)
    connection.sendall(queued)
    until(lambda: not queued or any(map(_has_queued, gc.get_objects())))
    connection.close()
    until(lambda: engine.running == 0 and connections.open == before)
    until(lambda: application.lifecycle.active == 0)
    assert not leftovers()


def test_a_closed_websocket_leaves_nothing_in_memory(
    client: httpx.Client, application: Application, leftovers: Leftovers
) -> None:
    before = application.connections.open
    with raw_requests.connect(client, UPGRADE) as connection:
        assert b"101 Switching Protocols" in connection.recv(4096)
    until(lambda: application.connections.open == before)
    until(lambda: application.lifecycle.active == 0)
    assert not leftovers()


def _has_queued(of_the_server: object) -> bool:
    """Whether this is a connection with requests behind its running one."""
    return type(of_the_server) is HttpProtocol and bool(
        of_the_server.pipeline or of_the_server._unparsed
    )


def test_others_continue_while_clients_leave(
    client: httpx.Client, application: Application
) -> None:
    body = {"model": "characters", "prompt": "To be", "max_tokens": 400, "seed": 5}
    alone = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    texts: list[str] = []

    def stay() -> None:
        with httpx.Client(base_url=client.base_url, timeout=60) as own:
            texts.append(own.post("/v1/completions", json=body).json()["choices"][0]["text"])

    threads = [threading.Thread(target=stay) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        long = {"model": "characters", "prompt": "b", "max_tokens": 50_000, "stream": True}
        connection = connect(client, "/v1/completions", long)
        time.sleep(0.01)
        connection.close()
    for thread in threads:
        thread.join(60)
    assert texts == [alone] * 4
    engine = application.lifecycle.catalogue.with_states("characters").engine
    until(lambda: engine.rows == 0)


def test_a_client_that_leaves_before_its_body_is_complete_costs_nothing(
    client: httpx.Client, application: Application
) -> None:
    connection = socket.create_connection((client.base_url.host, client.base_url.port or 0))
    connection.sendall(b"POST /v1/classify HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    until(lambda: application.lifecycle.active == 1)
    connection.close()
    until(lambda: application.lifecycle.active == 0)


def test_a_client_that_never_reads_holds_back_nobody(
    client: httpx.Client, application: Application
) -> None:
    body = {"model": "characters", "prompt": "a", "max_tokens": 20_000, "stream": True, "n": 4}
    body |= {"logprobs": 5}  # more bytes than socket buffers hold
    connection = connect(client, "/v1/completions", body)
    engine = application.lifecycle.catalogue.with_states("characters").engine
    until(lambda: engine.running == 4)
    reply = client.post("/v1/score", json={"model": "characters", "input": "To be"})
    assert reply.status_code == 200
    connection.close()
    until(lambda: engine.rows == 0 and application.lifecycle.active == 0)


def test_pipelined_requests_are_answered_in_order(client: httpx.Client) -> None:
    bodies = [json.dumps({"model": "question", "input": text}).encode() for text in ("a", "b a")]
    request = b"".join(
        b"POST /v1/classify HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(b), b)
        for b in bodies
    )
    with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as connection:
        connection.sendall(request)
        received = b""
        while received.count(b'"usage"') < 2:
            received += (part := connection.recv(65536))
            assert part, received
    assert received.index(b'"steps":1}') < received.index(b'"steps":2}')


def test_a_request_that_waits_for_too_long_gets_504(serve: Serve) -> None:
    with serve("characters", queue_timeout_ms=1, max_batch_tokens=1) as (client, _):
        bodies = [{"model": "characters", "input": "a" * 500} for _ in range(8)]
        replies: list[httpx.Response] = []

        def ask(body: dict[str, Any]) -> None:
            replies.append(httpx.post(f"{client.base_url}/v1/score", json=body, timeout=60))

        threads = [threading.Thread(target=ask, args=(body,)) for body in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {reply.status_code for reply in replies} <= {200, 504}
        late = [reply.json()["error"]["code"] for reply in replies if reply.status_code == 504]
        assert set(late) == {"deadline_exceeded"}


@pytest.mark.parametrize(
    "behind",
    [
        b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n" * 2000,
        b"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n" + b"a" * 199_999,
    ],
    ids=["a request", "many requests", "a long body"],
)
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_client_that_leaves_with_more_pipelined_is_seen(
    client: httpx.Client, application: Application, behind: bytes, reset: bool
) -> None:
    engine = application.lifecycle.catalogue.with_states("characters").engine
    body = {"model": "characters", "prompt": "a", "max_tokens": 100_000}
    connection = connect(client, "/v1/completions", body)
    until(lambda: engine.running == 1)
    connection.settimeout(0.5)
    with suppress(TimeoutError):  # the server does not read it all
        connection.sendall(behind)
    assert engine.running == 1
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    until(lambda: engine.running == 0 and engine.rows == 0)
    until(lambda: application.lifecycle.active == 0)
