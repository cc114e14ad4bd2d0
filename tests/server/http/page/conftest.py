"""A visitor of the page, in a real browser, and a server of the bundled models."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import sruserve
from tests.browser import Browser, Page, running
from tests.server.observing import until
from tests.server.processes import serving

DEMO = Path(sruserve.__file__).parent / "demo"
MODELS = [DEMO / "question-type", DEMO / "shakespeare"]
KEYS = "a" * 64

# Keeps the path, body and reply of each request of the page.
_RECORD = """
window.requests = [];
const send = window.fetch;
window.fetch = async (path, options) => {
  const reply = await send(path, options);
  if (options?.body) {
    const kept = { path, body: JSON.parse(options.body), status: reply.status };
    window.requests.push(kept);
    const isJson = reply.headers.get("content-type") === "application/json";
    if (isJson) kept.reply = await reply.clone().json();
  }
  return reply;
};
"""

_READY = """
document.querySelector("#key-dialog")
&& (!document.body.ariaBusy || document.querySelector("#key-dialog").open)
"""


class Visitor:
    """Opens the page of a server, and uses it as people do."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url

    def open(self, fragment: str = "") -> None:
        """Open the page anew, as in a new tab."""
        # a short text of the same server: its process stays, that of an empty page is another
        self.page.call("Page.navigate", url=f"{self.url}/livez")
        self.page.call("Page.navigate", url=f"{self.url}/{fragment}")
        self.wait(_READY)
        self.page.evaluate(_RECORD)

    @contextmanager
    def screen(self, width: int, height: int) -> Iterator[None]:
        """A screen of another size; a narrow one is a phone's."""
        self.page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        try:
            yield
        finally:
            self.page.call("Emulation.clearDeviceMetricsOverride")

    def evaluate(self, program: str) -> Any:
        return self.page.evaluate(program)

    def wait(self, condition: str) -> None:
        """Wait until an expression of JavaScript is true."""
        until(lambda: bool(self.page.evaluate(f"Boolean({condition})")), 60)

    def click(self, selector: str, text: str | None = None) -> None:
        """Click an element; of several, the first whose text begins so."""
        elements = f"[...document.querySelectorAll({json.dumps(selector)})]"
        self.page.evaluate(
            f"{elements}.find((e) => e.textContent.startsWith({json.dumps(text or '')})).click()"
        )

    def focus(self, selector: str) -> None:
        self.page.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")

    def type(self, text: str) -> None:
        """Type into what has the focus, one character after another."""
        for character in text:
            self.page.call("Input.insertText", text=character)

    def press(self, key: str) -> None:
        number = {"Tab": 9, "Enter": 13}.get(key, 0)
        typed = {"text": "\r"} if key == "Enter" else {}
        for kind, extra in (("keyDown", typed), ("keyUp", {})):
            about = {"key": key, "code": key, "windowsVirtualKeyCode": number, **extra}
            self.page.call("Input.dispatchKeyEvent", type=kind, **about)

    def text(self, selector: str) -> str:
        return str(
            self.page.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")
        )

    def fill(self, **fields: object) -> None:
        """Fill fields of the form that writes a text."""
        for name, value in fields.items():
            field = f"document.querySelector('#generate-form').elements.{name}"
            self.page.evaluate(f"{field}.value = {json.dumps(str(value))}")

    def requests(self, path: str) -> list[dict[str, Any]]:
        """The requests of the page for a path since it was opened."""
        every: list[dict[str, Any]] = self.page.evaluate("window.requests")
        return [each for each in every if each["path"] == path]

    def problems(self) -> list[str]:
        """What the console has shown, without requests that failed."""
        self.page.evaluate("0")  # receives what came last
        return [each for each in self.page.problems if '"source": "network"' not in each]


Visit = Callable[[str], AbstractContextManager[Visitor]]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with running(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="session")
def visit(browser: Browser) -> Visit:
    """`with visit(url) as visitor`: a tab of a browser; its console stays silent."""

    @contextmanager
    def start(url: str) -> Iterator[Visitor]:
        with browser.new_page() as page:
            visitor = Visitor(page, url.rstrip("/"))
            visitor.open()
            yield visitor
            assert visitor.problems() == []

    return start


@pytest.fixture(scope="session")
def demo() -> Iterator[httpx.Client]:
    """A server of the bundled models."""
    with serving(*MODELS, state_keys=KEYS, grpc_port="off") as (client, _):
        yield client


@pytest.fixture(scope="session")
def visitor(visit: Visit, demo: httpx.Client) -> Iterator[Visitor]:
    """One visitor for all tests that need nothing special; they `open` the page anew."""
    with visit(str(demo.base_url)) as visitor:
        yield visitor
