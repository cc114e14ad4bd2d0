"""`GET /`: a page for browsers, and JSON for programs."""

import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest

from sruserve.server.http import index
from tests.server.conftest import Serve

FOLDER = Path(index.__file__).parent / "page"
PAGE = "index.html"
INLINE = {  # what stands for a file in the page, and what is sent in its place
    "first.css": ('<link rel="stylesheet" href="/page/first.css">', "<style>{}</style>"),
    "start.js": ('<script src="/page/start.js"></script>', "<script>{}</script>"),
}
FILES = sorted({file.name for file in FOLDER.iterdir()} - {PAGE, *INLINE})
BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
MAX_BYTES = 100_000


class Parsed(HTMLParser):
    """What the page refers to, and what a strict policy would refuse."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.refused: list[str] = []
        self.inline: dict[str, list[str]] = {"script": [], "style": []}
        self._inside: str | None = None  # an element of the page's own style or script
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        names = dict(attributes)
        self.addresses += [names[name] or "" for name in ("src", "href") if name in names]
        self._inside = tag if tag in self.inline and "src" not in names else None
        if any(name == "style" or name.startswith("on") for name in names):
            self.refused.append(tag)

    def handle_data(self, data: str) -> None:
        if self._inside is not None:
            self.inline[self._inside].append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = None


def test_a_browser_gets_the_page_and_a_program_json(client: httpx.Client) -> None:
    page = client.get("/", headers=BROWSER)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for accept in ("*/*", "application/json", ""):
        reply = client.get("/", headers={"accept": accept})
        assert reply.json()["documentation"] == "/docs"
        assert reply.headers["content-type"] == "application/json"
        assert reply.headers["vary"] == "Accept"
    assert page.headers["vary"] == "Accept, Accept-Encoding"


def test_the_page_is_small_and_needs_nothing_from_elsewhere(client: httpx.Client) -> None:
    parsed = Parsed(client.get("/", headers=BROWSER).text)
    own = [address for address in parsed.addresses if address.startswith("/page/")]
    others = set(parsed.addresses) - set(own)
    assert others == {"#content", "/docs", "/metrics"}
    for address in set(own):
        assert client.get(address).status_code == 200
    contents = {name: (FOLDER / name).read_text() for name in [PAGE, *INLINE, *FILES]}
    assert sum(len(content.encode()) for content in contents.values()) < MAX_BYTES
    elsewhere = re.compile(r"https?://(?!www\.w3\.org/2000/svg)|url\((?!/page/icon\.svg\))|@import")
    for name, content in contents.items():
        assert not elsewhere.search(content), name


def test_the_first_paint_waits_for_the_page_alone(client: httpx.Client) -> None:
    page = client.get("/", headers=BROWSER).text
    expected = (FOLDER / PAGE).read_text()
    for name, (link, whole) in INLINE.items():
        assert link in expected
        expected = expected.replace(link, whole.format((FOLDER / name).read_text()))
    assert page == expected
    seen = re.sub(r"<(script|noscript)>.*?</\1>", "", page, flags=re.DOTALL)
    assert re.findall(r'["(`]/page/(.*?)[")`]', seen) == ["icon.svg"]


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
    early = re.findall(r"SCRIPTS = `(.*?)`", page, re.DOTALL)[0].split()
    assert {f"{name}.js" for name in early} == scripts  # so that none waits for another


def test_the_policy_allows_nothing_inline_but_what_the_page_contains(client: httpx.Client) -> None:
    page = client.get("/", headers=BROWSER)
    policy = page.headers["content-security-policy"]
    parts = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert parts["default-src"] == parts["base-uri"] == parts["form-action"] == "'none'"
    assert parts["img-src"] == parts["connect-src"] == "'self'"
    parsed = Parsed(page.text)
    assert parsed.refused == []
    (style,), (script,) = parsed.inline["style"], parsed.inline["script"]
    assert parts["style-src"] == f"'self' {allowed(style)}"
    assert parts["script-src"] == f"'self' {allowed(script)}"


def test_all_html_has_a_policy_that_lets_no_other_page_frame_it(client: httpx.Client) -> None:
    pages = ["/", "/docs", *(f"/page/{name}" for name in FILES)]
    replies = [client.get(page, headers=BROWSER) for page in pages]
    html = [reply for reply in replies if reply.headers["content-type"].startswith("text/html")]
    assert len(html) >= 3
    for reply in html:
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy, reply.url
        assert "frame-ancestors 'none'" in policy, reply.url


def allowed(content: str) -> str:
    """What allows an element with this content in a policy (Content Security Policy 3, 2.3.1)."""
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"


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


@pytest.mark.parametrize("path", ["/", "/page/page.css"])
def test_a_client_gets_gzip_if_it_accepts_that(client: httpx.Client, path: str) -> None:
    def get(**headers: str) -> httpx.Response:
        return client.get(path, headers={**BROWSER, **headers})

    packed = get(**{"accept-encoding": "br;q=1.0, gzip;q=0.5"})
    plain = get(**{"accept-encoding": "br, gzip;q=0"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content  # unpacked by the client
    sizes = [int(reply.headers["content-length"]) for reply in (packed, plain)]
    assert 2 * sizes[0] < sizes[1] == len(plain.content)
    tags = [reply.headers["etag"] for reply in (packed, plain)]
    assert tags[0] != tags[1]  # they are not the same bytes
    again = {"accept-encoding": "identity", "if-none-match": tags[0]}
    assert get(**again).content == plain.content


def test_the_page_is_sent_again_only_if_it_differs(client: httpx.Client) -> None:
    page = client.get("/", headers=BROWSER)
    etag = page.headers["etag"]
    again = client.get("/", headers={**BROWSER, "if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["vary"] == page.headers["vary"] == "Accept, Accept-Encoding"
    assert client.get("/", headers={"if-none-match": etag}).status_code == 200  # JSON has no tag


@pytest.mark.parametrize("name", ["absent.js", PAGE, *INLINE, "%2e%2e%2findex.py", ""])
def test_no_other_file_can_be_read(client: httpx.Client, name: str) -> None:
    reply = client.get(f"/page/{name}")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "route_not_found")


def test_nothing_of_it_is_on_when_the_page_is_off(serve: Serve) -> None:
    with serve("characters", page="off") as (client, _):
        reply = client.get("/", headers=BROWSER)
        assert reply.json()["models"] == "/v1/models"
        for name in FILES:
            assert client.get(f"/page/{name}").status_code == 404
