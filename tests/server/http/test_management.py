"""Models, probes and metrics."""

import re
import socket
import threading
from typing import Any

import httpx
import pytest

from sruserve.server.app import Application
from sruserve.server.http.uvicorn_http import HttpProtocol
from tests.server.http.raw_requests import connect
from tests.server.observing import until


def test_models_are_listed_with_what_a_client_needs(client: httpx.Client) -> None:
    listed = client.get("/v1/models").json()
    assert listed["object"] == "list"
    by_id = {model["id"]: model for model in listed["data"]}
    assert set(by_id) == {"question", "whole", "sensor", "characters", "other", "words", "ids"}
    question = by_id["question"]
    assert (question["object"], question["task"]) == ("model", "classify")
    assert question["streams"]
    assert question["state_bytes"] == 2 * 24 * 4
    assert re.fullmatch("[0-9a-f]{64}", question["digest"])
    assert len(question["labels"]) == 6
    assert question["description"] == ""
    assert not by_id["whole"]["streams"]
    assert client.get("/v1/models/question").json() == question


def test_probes_say_ready(client: httpx.Client) -> None:
    for path in ("/livez", "/readyz", "/health"):
        reply = client.get(path)
        assert (reply.status_code, reply.json()) == (200, {"status": "ok"})


def test_probes_ignore_queries_and_slashes_after_their_paths(client: httpx.Client) -> None:
    assert client.get("/livez?" + "a=1&" * 2000).json() == {"status": "ok"}


def test_probes_are_asked_by_get_and_head_alone(client: httpx.Client) -> None:
    for path in ("/livez", "/readyz", "/health"):
        reply = client.post(path)
        assert (reply.status_code, reply.headers["allow"]) == (405, "GET, HEAD")


def test_readiness_is_503_while_draining_and_liveness_is_not(
    client: httpx.Client, application: Application
) -> None:
    application.lifecycle.draining = True
    try:
        for path in ("/readyz", "/health"):
            reply = client.get(path)
            assert (reply.status_code, reply.json()) == (503, {"status": "draining"})
            assert reply.headers["retry-after"]
        assert client.get("/livez").status_code == 200
    finally:
        application.lifecycle.draining = False


def test_readiness_is_503_when_an_engine_has_died_and_liveness_is_not(
    client: httpx.Client, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = application.lifecycle.catalogue["sensor"].engine
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_thread", threading.Thread())  # one that does not run
        for path in ("/readyz", "/health"):
            reply = client.get(path)
            assert (reply.status_code, reply.json()) == (503, {"status": "failed"})
        assert client.get("/livez").status_code == 200
    assert client.get("/readyz").status_code == 200


def test_the_error_of_a_plain_request_for_the_socket_says_how_to_open_one(
    client: httpx.Client,
) -> None:
    reply = client.get("/v1/stream")
    assert (reply.status_code, reply.headers["upgrade"]) == (426, "websocket")
    assert reply.headers["connection"] == "upgrade"
    error = reply.json()["error"]
    assert error["code"] == "upgrade_required"
    assert "WebSocket client" in error["message"]
    assert client.post("/v1/stream").headers["allow"] == "GET, HEAD"


def test_the_index_shows_the_way(client: httpx.Client) -> None:
    index = client.get("/").json()
    assert set(index) == {"name", "version", "documentation", "models", "metrics"}
    for name in ("documentation", "models", "metrics"):
        assert client.get(index[name]).status_code == 200


@pytest.mark.parametrize(
    ("path", "requests"),
    [("/docs/assets/swagger-ui-bundle.js", 1), ("/metrics", 1), ("/page/tour.js", 40)],
)
def test_a_client_that_reads_nothing_holds_little_of_long_pages(
    client: httpx.Client,
    application: Application,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    requests: int,
) -> None:
    sizes: list[int] = []
    made, pause = HttpProtocol.connection_made, HttpProtocol.pause_writing

    def narrow(protocol: HttpProtocol, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(protocol, transport)

    def see(protocol: HttpProtocol) -> None:
        sizes.append(protocol.transport.get_write_buffer_size())
        pause(protocol)

    async def read() -> tuple[bytes, str]:
        return bytes(1 << 20), "text/plain"

    monkeypatch.setattr(HttpProtocol, "connection_made", narrow)
    monkeypatch.setattr(HttpProtocol, "pause_writing", see)
    monkeypatch.setattr(application.metrics, "read", read)
    with connect(client, f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode() * requests):
        until(lambda: bool(sizes))
    assert sizes[0] < 64 << 10
