"""Models, probes and documentation."""

import asyncio
import mimetypes
import os
import re
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
import swagger_ui_bundle

from sruserve.server.app import Application
from sruserve.server.http import management as pages
from sruserve.server.http.uvicorn_http import HttpProtocol
from sruserve.server.kserve.http.openapi import router as kserve_pages
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.settings import load_settings
from sruserve.server.websocket.session import PATH as SOCKET
from tests.server.http.raw_requests import connect
from tests.server.http.test_clients_that_leave import until


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
    assert not by_id["whole"]["streams"]
    assert client.get("/v1/models/question").json() == question


def test_probes_say_ready(client: httpx.Client) -> None:
    for path in ("/livez", "/readyz", "/health"):
        reply = client.get(path)
        assert (reply.status_code, reply.json()) == (200, {"status": "ok"})


def test_probes_cost_no_page(
    client: httpx.Client, application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "_pages", None)
    for path in ("/livez", "/readyz", "/health", "/livez?" + "a=1&" * 2000):
        assert client.get(path).json() == {"status": "ok"}


def test_probes_are_asked_by_get_alone(client: httpx.Client) -> None:
    for path in ("/livez", "/readyz", "/health"):
        reply = client.post(path)
        assert (reply.status_code, reply.headers["allow"]) == (405, "GET")


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


def test_a_plain_request_for_the_socket_is_told_to_open_one(client: httpx.Client) -> None:
    reply = client.get("/v1/stream")
    assert (reply.status_code, reply.headers["upgrade"]) == (426, "websocket")
    assert reply.headers["connection"] == "upgrade"
    error = reply.json()["error"]
    assert error["code"] == "upgrade_required"
    assert "WebSocket client" in error["message"]
    assert client.post("/v1/stream").headers["allow"] == "GET"


def test_the_index_shows_the_way(client: httpx.Client) -> None:
    index = client.get("/").json()
    assert set(index) == {"name", "version", "documentation", "models", "metrics"}
    for name in ("documentation", "models", "metrics"):
        assert client.get(index[name]).status_code == 200


@pytest.fixture(scope="module")
def document(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/openapi.json").json()
    return found


HOT = ["/v1/classify", "/v1/tag", "/v1/encode", "/v1/completions", "/v1/score"]


@pytest.mark.parametrize("path", HOT)
def test_hot_routes_are_documented_with_schemas_and_examples(
    document: dict[str, Any], path: str
) -> None:
    operation = document["paths"][path]["post"]
    for content in (
        operation["requestBody"]["content"],
        operation["responses"]["200"]["content"],
        operation["responses"]["429"]["content"],
    ):
        name = content["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
        assert document["components"]["schemas"][name]["properties"]
    request = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert document["components"]["schemas"][request.rsplit("/", 1)[1]]["examples"]


def test_documented_examples_work(
    client: httpx.Client, tasks: httpx.Client, document: dict[str, Any]
) -> None:
    models = {"/v1/classify": "question", "/v1/tag": "tagger", "/v1/encode": "small"}
    for path in HOT:
        reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        name = reference["schema"]["$ref"].rsplit("/", 1)[1]
        for example in document["components"]["schemas"][name]["examples"]:
            model = "pairs" if "pair" in example else models.get(path, "characters")
            asked = tasks if model in ("pairs", "tagger", "small") else client
            reply = asked.post(path, json={"model": model} | example)
            assert reply.status_code == 200, reply.text


def test_the_documentation_offers_to_send_an_api_key(document: dict[str, Any]) -> None:
    scheme = document["components"]["securitySchemes"]["key"]
    assert scheme == {"type": "http", "scheme": "bearer"}
    assert document["security"] == [{}, {"key": []}]  # where the server has none, none is needed


def test_the_documents_are_made_once(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = ("/openapi.json", "/docs/openapi.json")
    first = [client.get(path).content for path in paths]
    made: list[object] = []
    monkeypatch.setattr(pages, "json_bytes", made.append)
    assert [client.get(path).content for path in paths] == first
    assert not made


def test_the_documentation_page_needs_nothing_from_outside(client: httpx.Client) -> None:
    page = client.get("/docs").text
    assert "http://" not in page
    assert "https://" not in page
    assert '"validatorUrl": null' in page
    for address in re.findall(r'(?:src|href)="([^"]+)"', page):
        reply = client.get(address)
        assert reply.status_code == 200, address
    assert client.get("/docs/openapi.json").json()["openapi"] == "3.0.3"


def test_every_documented_page_answers(client: httpx.Client, document: dict[str, Any]) -> None:
    stream = client.post("/v1/streams", json={"model": "question"}).json()["id"]
    for path, operations in document["paths"].items():
        if "get" in operations:
            page = path.replace("{model}", "question").replace("{id}", stream)
            assert client.get(page.replace("{version}", "1")).status_code == 200
    client.delete(f"/v1/streams/{stream}")


ASSETS = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png")


@pytest.mark.parametrize("name", ASSETS)
def test_the_files_of_the_page_are_whole_and_sent_again_only_if_they_differ(
    client: httpx.Client, name: str
) -> None:
    path = f"/docs/assets/{name}"
    reply = client.get(path)
    assert reply.content == (swagger_ui_bundle.swagger_ui_path / name).read_bytes()
    assert reply.headers["content-type"].split(";")[0] == mimetypes.guess_type(name)[0]
    etag = reply.headers["etag"]
    again = client.get(path, headers={"if-none-match": etag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert client.get(path, headers={"if-none-match": '"other"'}).status_code == 200
    head = client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == reply.headers["content-length"]


@pytest.mark.parametrize("name", ["absent.js", "a/" * 2000, "a%2fb", ".", "", "index.html"])
def test_no_path_of_a_file_gets_to_the_disk(
    client: httpx.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    look = os.lstat

    def see(path: Any, **given: Any) -> os.stat_result:
        asked.append(str(path))
        return look(path, **given)

    monkeypatch.setattr(os, "lstat", see)
    reply = client.get(f"/docs/assets/{name}")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "route_not_found")
    assert not any(swagger_ui_bundle.swagger_ui_path.name in path for path in asked)


@pytest.mark.parametrize("path", [f"/docs/assets/{ASSETS[0]}", "/metrics"])
def test_a_client_that_reads_nothing_holds_little_of_a_long_page(
    client: httpx.Client, application: Application, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    held: list[int] = []
    made, pause = HttpProtocol.connection_made, HttpProtocol.pause_writing

    def narrow(protocol: HttpProtocol, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(protocol, transport)

    def see(protocol: HttpProtocol) -> None:
        held.append(protocol.transport.get_write_buffer_size())
        pause(protocol)

    async def read() -> tuple[bytes, str]:
        return bytes(1 << 20), "text/plain"

    monkeypatch.setattr(HttpProtocol, "connection_made", narrow)
    monkeypatch.setattr(HttpProtocol, "pause_writing", see)
    monkeypatch.setattr(application.metrics, "read", read)
    with connect(client, f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()):
        until(lambda: bool(held))
    assert held[0] < 256 << 10


def test_documents_that_could_not_be_made_are_made_again(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = pages.create_pages(Lifecycle(load_settings(models=folders)), SOCKET, kserve_pages)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    async def ask() -> list[int]:
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", _no_thread)
                failed = await client.get("/openapi.json")
            return [failed.status_code, (await client.get("/openapi.json")).status_code]

    assert asyncio.run(ask()) == [503, 200]


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
