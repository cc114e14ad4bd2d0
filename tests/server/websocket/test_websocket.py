"""Sockets beside each other, beside HTTP, and what an open one keeps."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import websockets

from sruserve.server.app import Application
from sruserve.server.http.uvicorn_http import HttpProtocol
from sruserve.server.websocket.uvicorn_websocket import WebSocketProtocol
from tests.server.conftest import Serve
from tests.server.observing import metric, until
from tests.server.websocket.talks import GENERATE, ask, completed, connected, run


def test_hundreds_of_sockets_opened_at_once_are_all_answered_and_http_between_them(
    serve: Serve,
) -> None:
    async def talk(client: httpx.Client) -> list[str]:
        async def one(i: int) -> str:
            async with connected(client) as connection:
                text, _ = await completed(connection, **GENERATE, max_tokens=10 + i % 3)
                return text

        texts = await asyncio.gather(*map(one, range(300)))
        while answered <= 3:  # between sockets, and not behind all of them
            texts += await asyncio.gather(*map(one, range(300)))
        return texts

    answered = 0
    with serve("characters") as (client, application), ThreadPoolExecutor(1) as pool:
        talking = pool.submit(run, lambda: talk(client))
        while not talking.done():  # not from the loop of the sockets, which has much to do itself
            assert client.get("/readyz").status_code == 200
            answered += 1
        longest = max(texts := talking.result(), key=len)
        assert all(longest.startswith(text[:-4]) and text for text in texts)
        engine = application.lifecycle.catalogue.with_states("characters").engine
        until(lambda: engine.rows == 0 and metric(client, "sru_sockets") == 0)


def test_sockets_and_their_frames_are_counted(client: httpx.Client) -> None:
    def frames(outcome: str) -> float:
        labels = f'model="question",outcome="{outcome}",route="/v1/stream"'
        return metric(client, f"sru_requests_total{{{labels}}}")

    before = frames("ok"), frames("invalid")

    async def talk() -> None:
        async with connected(client) as one, connected(client):
            until(lambda: metric(client, "sru_sockets") == 2)
            await ask(one, model="question")
            await ask(one, input="a")
            await ask(one, input=1)

    run(talk)
    until(lambda: metric(client, "sru_sockets") == 0)
    until(lambda: (frames("ok"), frames("invalid")) == (before[0] + 2, before[1] + 1))


@pytest.mark.parametrize("name", ["x-long", "authorization"])
def test_an_open_socket_keeps_no_head(
    client: httpx.Client, application: Application, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    long = "a" * 50_000
    opened: list[HttpProtocol] = []
    upgrade = HttpProtocol.handle_websocket_upgrade

    def see(protocol: HttpProtocol) -> None:
        opened.append(protocol)
        upgrade(protocol)

    async def talk() -> None:
        async with connected(client, additional_headers={name: long}) as connection:
            assert "error" not in await ask(connection, model="question", input="a")
            (http,) = opened
            socket = http.transport.get_protocol()
            assert isinstance(socket, WebSocketProtocol)
            assert not any((http.headers, http.scope, list(socket.request.headers)))
            assert socket.scope["headers"] == []
            sockets = [each for each in application._sockets._open if each._connection is socket]
            assert [each._authorization for each in sockets] == [None]

    monkeypatch.setattr(HttpProtocol, "handle_websocket_upgrade", see)
    run(talk)


def test_there_is_one_path_for_sockets(client: httpx.Client) -> None:
    url = str(client.base_url).replace("http", "ws", 1) + "/v1/other"

    async def talk() -> int:
        with pytest.raises(websockets.InvalidStatus) as refused:
            await websockets.connect(url)
        return refused.value.response.status_code

    assert run(talk) == 404
