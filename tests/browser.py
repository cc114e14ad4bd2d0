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


@contextmanager
def opened(url: str, profile: Path) -> Iterator[Page]:
    """A page of this machine, in a browser of its own.

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
        address = line.split("ws://")[1].split("/")[0]
        tabs = json.load(urllib.request.urlopen(f"http://{address}/json/list", timeout=60))
        (tab,) = [tab for tab in tabs if tab["type"] == "page"]
        with connect(tab["webSocketDebuggerUrl"], **_PATIENT) as socket:
            page = Page(socket)
            page.call("Runtime.enable")
            page.call("Log.enable")
            page.call("Page.navigate", url=url)
            page.evaluate(_LOADED)
            yield page
    finally:
        browser.kill()
        browser.communicate(timeout=300)


_LOADED = """
new Promise((done) => {
  const look = () => (document.readyState === "complete" ? done() : setTimeout(look, 20));
  look();
})
"""
