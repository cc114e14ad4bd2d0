"""The documentation: its page, its files and the document that it shows."""

import asyncio
import os
import re
import threading
from contextlib import nullcontext
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest

from sruserve.server.http import docs
from sruserve.server.http.docs import Documentation
from sruserve.server.http.router import Router

FOLDER = Path(docs.__file__).parent / "swagger_ui"
SCRIPT = "text/javascript"
ASSETS = {
    "swagger-ui-bundle.js": SCRIPT,
    "start.js": SCRIPT,
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}


class Page(HTMLParser):
    """What an HTML page refers to, and the scripts that stand in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.inline: list[str] = []
        self._script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._script = tag == "script"
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self._script and data.strip():
            self.inline.append(data)


def test_the_page_loads_its_own_files_and_the_document_alone(client: httpx.Client) -> None:
    reply = client.get("/docs")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    page = Page(reply.text)
    assert sorted(page.addresses) == sorted(f"/docs/assets/{name}" for name in ASSETS)
    for address in page.addresses:
        assert client.get(address).status_code == 200, address
    start = client.get("/docs/assets/start.js").text
    assert re.findall(r'url: "(.*)"', start) == ["/openapi.json"]
    assert "validatorUrl: null" in start
    assert client.get("/openapi.json").json()["openapi"].startswith("3.1")


def test_the_page_allows_no_script_but_its_files(client: httpx.Client) -> None:
    reply = client.get("/docs")
    policy = dict(
        part.strip().split(" ", 1) for part in reply.headers["content-security-policy"].split(";")
    )
    assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == (
        "'none'",
        "'self'",
        "'self'",
    )
    assert not Page(reply.text).inline


def test_the_version_of_the_files_is_noted_beside_them() -> None:
    (noted,) = re.findall(r"`swagger-ui-dist` ([\d.]+\d)", (FOLDER / "README.md").read_text())
    assert f'"{noted}"' in (FOLDER / "swagger-ui-bundle.js").read_text()
    assert "Apache License" in (FOLDER / "LICENSE").read_text()
    assert "SmartBear" in (FOLDER / "NOTICE").read_text()


@pytest.mark.parametrize("name", ASSETS)
def test_the_files_of_the_page_are_whole_and_sent_again_only_if_they_differ(
    client: httpx.Client, name: str
) -> None:
    path = f"/docs/assets/{name}"
    reply = client.get(path)
    assert reply.content == (FOLDER / name).read_bytes()
    assert reply.headers["content-type"].split(";")[0] == ASSETS[name]
    etag = reply.headers["etag"]
    again = client.get(path, headers={"if-none-match": etag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert client.get(path, headers={"if-none-match": '"other"'}).status_code == 200
    head = client.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == reply.headers["content-length"]


@pytest.mark.parametrize(
    "name", ["absent.js", "a/" * 2000, "a%2fb", ".", "", "LICENSE", "%2e%2e%2fdocs.py"]
)
def test_no_path_of_a_file_gets_to_the_disk(
    client: httpx.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []
    look, read = os.lstat, Path.read_bytes

    def see(path: Any, **options: Any) -> os.stat_result:
        looked_up.append(str(path))
        return look(path, **options)

    def see_read(path: Path) -> bytes:
        looked_up.append(str(path))
        return read(path)

    monkeypatch.setattr(os, "lstat", see)
    monkeypatch.setattr(Path, "read_bytes", see_read)
    reply = client.get(f"/docs/assets/{name}")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "route_not_found")
    assert not any(FOLDER.name in path for path in looked_up)


def test_the_document_is_made_once(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    first = client.get("/openapi.json").content
    made: list[object] = []
    monkeypatch.setattr(docs, "json_bytes", made.append)
    assert client.get("/openapi.json").content == first
    assert not made


def test_a_document_that_could_not_be_made_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router(docs.mount(Documentation(lambda: {"openapi": "3.1.0"})), nullcontext())
    transport = httpx.ASGITransport(router)

    async def ask() -> list[int]:
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", _no_thread)
                failed = await client.get("/openapi.json")
            return [failed.status_code, (await client.get("/openapi.json")).status_code]

    assert asyncio.run(ask()) == [503, 200]


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")
