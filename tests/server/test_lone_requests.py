"""The event loop computes a lone short step; with company, the engine's thread."""

import math
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from sruserve.model.network import Network
from tests.server.conftest import TEXT, Serve


@pytest.fixture(scope="module")
def client(serve: Serve) -> Iterator[httpx.Client]:
    with serve("question") as (client, server):
        engine = server.lifecycle.catalogue.with_states("question").engine
        engine.short_seconds = math.inf  # steps are short on a busy machine, too
        yield client


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads of all steps."""
    names: list[str] = []
    hidden = Network.hidden

    def see(*arguments: Any) -> Any:
        names.append(threading.current_thread().name)
        return hidden(*arguments)

    monkeypatch.setattr(Network, "hidden", see)
    return names


def classify(client: httpx.Client, *, return_state: bool = True) -> None:
    reply = client.post("/v1/classify", json={"input": TEXT, "return_state": return_state})
    assert reply.status_code == 200


@pytest.mark.parametrize("return_state", [False, True])
def test_a_lone_request_needs_no_other_thread(
    client: httpx.Client, threads: list[str], return_state: bool
) -> None:
    for _ in range(20):
        classify(client, return_state=return_state)
    here = [name for name in threads if not name.startswith("engine")]
    assert here, "not one of them found the engine's thread waiting"
    assert {name.partition(":")[0] for name in here} == {"http"}, "the event loop's"


def test_beside_another_request_the_engines_thread_answers(
    client: httpx.Client, threads: list[str]
) -> None:
    head = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
    url = client.base_url
    with socket.create_connection((url.host, url.port), timeout=60) as other:
        other.sendall(head + b"Expect: 100-continue\r\n\r\n")
        assert b" 100 " in other.recv(100), "the server waits for its body now"
        for _ in range(5):
            classify(client)
    assert threads == ["engine question"] * 5
