"""`GET /`: a page for browsers, and JSON for programs."""

import re
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from sruserve.server.http import index
from tests.server.conftest import Serve

FOLDER = Path(index.__file__).parent / "page"
FILES = sorted(file.name for file in FOLDER.iterdir() if file.name != "index.html")
BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
MAX_BYTES = 100_000


class Parsed(HTMLParser):
    """What the page refers to, and what a strict policy would refuse."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.refused: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        names = dict(attributes)
        self.addresses += [names[name] or "" for name in ("src", "href") if name in names]
        inline = (tag == "script" and "src" not in names) or tag == "style"
        if inline or any(name == "style" or name.startswith("on") for name in names):
            self.refused.append(tag)


def test_a_browser_gets_the_page_and_a_program_json(client: httpx.Client) -> None:
    page = client.get("/", headers=BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.content == (FOLDER / "index.html").read_bytes()
    for accept in ("*/*", "application/json", ""):
        reply = client.get("/", headers={"accept": accept})
        assert reply.json()["documentation"] == "/docs"
        assert reply.headers["content-type"] == "application/json"
        assert reply.headers["vary"] == page.headers["vary"] == "Accept"


def test_the_page_is_small_and_needs_nothing_from_elsewhere(client: httpx.Client) -> None:
    parsed = Parsed(client.get("/", headers=BROWSER).text)
    own = [address for address in parsed.addresses if address.startswith("/page/")]
    others = set(parsed.addresses) - set(own)
    assert others == {"#content", "/docs", "/metrics"}
    for address in set(own):
        assert client.get(address).status_code == 200
    contents = {name: (FOLDER / name).read_text() for name in ["index.html", *FILES]}
    assert sum(len(content.encode()) for content in contents.values()) < MAX_BYTES
    for name, content in contents.items():
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|url\(|@import", content), name


def test_every_script_is_loaded_by_another(client: httpx.Client) -> None:
    scripts = {name for name in FILES if name.endswith(".js")}
    loaded, waiting = set(), ["app.js"]
    while waiting:
        name = waiting.pop()
        if name not in loaded:
            loaded.add(name)
            text = client.get(f"/page/{name}").text
            waiting += re.findall(r'^import .* from "\./(.*)";', text, re.MULTILINE)
    assert loaded == scripts
    page = client.get("/", headers=BROWSER).text
    early = re.findall(r'<link rel="modulepreload" href="/page/(.*)">', page)
    assert {*early, "app.js"} == scripts  # so that none waits for the one that loads it


def test_the_policy_allows_nothing_inline(client: httpx.Client) -> None:
    page = client.get("/", headers=BROWSER)
    policy = page.headers["content-security-policy"]
    parts = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert parts["default-src"] == parts["base-uri"] == parts["form-action"] == "'none'"
    for name in ("script-src", "style-src", "img-src", "connect-src"):
        assert parts[name] == "'self'"
    assert Parsed(page.text).refused == []


@pytest.mark.parametrize("name", FILES)
def test_files_are_sent_again_only_if_they_differ(client: httpx.Client, name: str) -> None:
    reply = client.get(f"/page/{name}")
    assert reply.content == (FOLDER / name).read_bytes()
    assert (reply.headers["cache-control"], reply.headers["x-content-type-options"]) == (
        "no-cache",
        "nosniff",
    )
    etag = reply.headers["etag"]
    again = client.get(f"/page/{name}", headers={"if-none-match": etag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)


def test_the_page_is_sent_again_only_if_it_differs(client: httpx.Client) -> None:
    etag = client.get("/", headers=BROWSER).headers["etag"]
    again = client.get("/", headers={**BROWSER, "if-none-match": etag})
    assert (again.status_code, again.content, again.headers["vary"]) == (304, b"", "Accept")
    assert client.get("/", headers={"if-none-match": etag}).status_code == 200  # JSON has no tag


@pytest.mark.parametrize("name", ["absent.js", "index.html", "%2e%2e%2findex.py", ""])
def test_no_other_file_can_be_read(client: httpx.Client, name: str) -> None:
    reply = client.get(f"/page/{name}")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "route_not_found")


def test_nothing_of_it_is_on_when_the_page_is_off(serve: Serve) -> None:
    with serve("characters", page="off") as (client, _):
        reply = client.get("/", headers=BROWSER)
        assert reply.json()["models"] == "/v1/models"
        for name in FILES:
            assert client.get(f"/page/{name}").status_code == 404
