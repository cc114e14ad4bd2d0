"""A page in headless Chromium, which reaches nothing but this machine, over its own protocol."""

import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

_ANSWER_SECONDS = 120
_PATIENT: dict[str, Any] = {
    "max_size": None,
    "open_timeout": _ANSWER_SECONDS,
    "ping_interval": None,
}


class Page:
    """An open page."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._sent = socket, 0
        self.problems: list[str] = []  # that the page wrote to the console, or did not catch

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command of Chromium's DevTools protocol."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        self._socket.send(json.dumps(message))
        while (received := self._receive()).get("id") != self._sent:
            pass
        assert "error" not in received, received
        result: dict[str, Any] = received["result"]
        return result

    def wait_for(self, method: str, **parameters: Any) -> None:
        """Wait for an event with these parameters, of those that come from now on."""
        while True:
            received = self._receive()
            if received["method"] == method and parameters.items() <= received["params"].items():
                return

    def _receive(self) -> dict[str, Any]:
        received: dict[str, Any] = json.loads(self._socket.recv(_ANSWER_SECONDS))
        if received.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.problems.append(json.dumps(received["params"]))
        return received

    def evaluate(self, program: str) -> Any:
        """The value of an expression in JavaScript, once its promise is kept."""
        result = self.call(
            "Runtime.evaluate", expression=program, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")


class Browser:
    """A browser that runs. url: of its protocol."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._host = url.split("/")[2]

    @contextmanager
    def first_page(self) -> Iterator[Page]:
        """The page that it was started with."""
        tabs = json.load(urllib.request.urlopen(f"http://{self._host}/json/list", timeout=60))
        (tab,) = [tab for tab in tabs if tab["type"] == "page"]
        with self._attached(tab["id"]) as page:
            yield page

    @contextmanager
    def new_page(self) -> Iterator[Page]:
        """An empty page in a tab of its own, which is closed at the end."""
        with connect(self._url, **_PATIENT) as socket:
            browser = Page(socket)
            tab = browser.call("Target.createTarget", url="about:blank", newWindow=True)
            try:
                with self._attached(tab["targetId"]) as page:
                    yield page
            finally:
                browser.call("Target.closeTarget", **tab)

    @contextmanager
    def _attached(self, tab: str) -> Iterator[Page]:
        with connect(f"ws://{self._host}/devtools/page/{tab}", **_PATIENT) as socket:
            page = Page(socket)
            page.call("Runtime.enable")
            page.call("Log.enable")
            yield page


@contextmanager
def running(profile: Path) -> Iterator[Browser]:
    """A browser of its own.

    profile: a folder for what the browser keeps.
    """
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs the system package chromium (apt-get install chromium)")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    options += ["--disable-background-networking", "--no-first-run", "--disable-extensions"]
    options += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    options += [f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank"]
    browser = subprocess.Popen([program, *options], stderr=subprocess.PIPE, text=True)
    try:
        assert browser.stderr is not None
        while "DevTools listening on" not in (line := browser.stderr.readline()):
            assert line, "chromium ended before it listened"
        yield Browser(line.split()[-1])
    finally:
        browser.kill()
        browser.communicate(timeout=300)


@contextmanager
def opened(url: str, profile: Path) -> Iterator[Page]:
    """A page of this machine, in a browser of its own.

    profile: a folder for what the browser keeps.
    """
    with running(profile) as browser, browser.first_page() as page:
        page.call("Page.navigate", url=url)
        page.evaluate(_LOADED)
        yield page


_LOADED = """
new Promise((done) => {
  const look = () => (document.readyState === "complete" ? done() : setTimeout(look, 20));
  look();
})
"""
