"""No stream is lost: a server stops, restarts or is killed, and its clients go on elsewhere."""

import asyncio
import contextlib
import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets

from tests.server.observing import until
from tests.server.ports import free_port
from tests.server.processes import COMPLETE, Process, complete, ended, serving
from tests.server.slow_server import slow_server
from tests.server.websocket.talks import ask, connected, next_frame
from tests.support import PRINTABLE, save_random_model

KEYS = {"state_keys": "e" * 64, "state_pool_bytes": str(8 << 20)}
STREAMS, ENDLESS, REST = 200, 50_000, 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model each of whose tokens is a character."""
    folder = tmp_path_factory.mktemp("models") / "printable"
    slow: dict[str, Any] = {"hidden_size": 128, "num_layers": 3}  # clients have to keep up
    save_random_model(folder, vocabulary=PRINTABLE, **slow)
    return folder


@pytest.fixture(scope="module")
def replica(folder: Path) -> Iterator[httpx.Client]:
    """A server that stays."""
    with serving(folder, **KEYS) as (client, _):
        yield client


@dataclass
class Reading:
    """What one client has of its stream: a text, and the state after the first `at` characters."""

    seed: int
    text: str = ""
    at: int = 0
    state: str | None = None

    async def read(self, server: httpx.AsyncClient, max_tokens: int) -> None:
        """Go on from the last state, up to the end or the server's."""
        self.text = self.text[: self.at]
        begin: dict[str, Any] = (
            {"prompt": "", "state": self.state} if self.state else {"prompt": "To be"}
        )
        body = begin | {"seed": None if self.state else self.seed, "max_tokens": max_tokens}
        body |= {"stream": True, "stream_options": {"state_interval": 20}}
        async with server.stream("POST", COMPLETE, json=body) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                    self.text += choice["text"]
                    if (state := choice.get("state")) is not None:
                        self.at, self.state = len(self.text), state

    async def whole(self, server: httpx.AsyncClient) -> str:
        """The text of somebody who was not interrupted."""
        body = {"prompt": "To be", "seed": self.seed, "max_tokens": len(self.text)}
        text: str = (await server.post(COMPLETE, json=body)).json()["choices"][0]["text"]
        return text


def connect_all(client: httpx.Client) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=STREAMS, max_keepalive_connections=0)
    return httpx.AsyncClient(base_url=client.base_url, timeout=600, limits=limits)


def test_kill_9_in_the_middle_of_200_streams_loses_and_repeats_no_character(folder: Path) -> None:
    readings = [Reading(seed) for seed in range(STREAMS)]

    async def cut_off(process: Process) -> None:
        async with connect_all(client) as server:
            tasks = [asyncio.create_task(each.read(server, ENDLESS)) for each in readings]
            while not all(each.state for each in readings):
                await asyncio.sleep(0.01)
            process.kill()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, httpx.TransportError) for end in ends), "it was at its end"

    async def resume() -> list[str]:
        async with connect_all(client) as server:
            await asyncio.gather(*(each.read(server, REST) for each in readings))
            return await asyncio.gather(*(each.whole(server) for each in readings))

    with serving(folder, **KEYS) as (client, process):
        asyncio.run(asyncio.wait_for(cut_off(process), 600))
    read = [each.at for each in readings]
    with serving(folder, **KEYS) as (client, _):
        wholes = asyncio.run(asyncio.wait_for(resume(), 600))
    assert [each.text for each in readings] == wholes
    assert [len(each.text) for each in readings] == [at + REST for at in read]


def test_what_a_stopping_server_cannot_finish_continues_elsewhere(
    folder: Path, tmp_path: Path, replica: httpx.Client
) -> None:
    body = {"prompt": "To be", "max_tokens": 100_000, "seed": 5}

    async def stream(client: httpx.AsyncClient, begun: asyncio.Event) -> tuple[str, dict[str, Any]]:
        text, last = "", {}
        streamed = body | {"stream": True, "return_state": True}
        async with client.stream("POST", COMPLETE, json=streamed) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: {"):
                    (last,) = json.loads(line.removeprefix("data: "))["choices"]
                    text += last["text"]
                    begun.set()
        return text, last

    async def talk(client: httpx.Client, process: Process) -> list[tuple[str, dict[str, Any]]]:
        async with (
            httpx.AsyncClient(base_url=client.base_url, timeout=60) as http,
            connected(client) as idle,
            connected(client) as busy,
            connected(client) as fresh,
        ):
            await ask(idle, model="printable", input="To be")
            await busy.send(json.dumps({"model": "printable"} | body))
            pieces = [await next_frame(busy)]
            begun = asyncio.Event()
            running = asyncio.create_task(stream(http, begun))
            await begun.wait()
            process.send_signal(signal.SIGTERM)
            replies = [await running]
            for connection in (idle, fresh, busy):
                with contextlib.suppress(websockets.ConnectionClosed):
                    while True:
                        pieces.append(await next_frame(connection))
                assert connection.close_code == 1012
                last = pieces.pop()
                assert last["error"]["code"] == "draining"
                if connection is busy:
                    (end,) = pieces[-1]["choices"]
                    assert (end["finish_reason"], end["stop_reason"]) == ("length", "draining")
                    text = "".join(piece["choices"][0]["text"] for piece in pieces)
                    replies.append((text, {"state": last["state"]} | end | last))
                else:
                    assert (last["state"] is None) == (connection is fresh)
            return replies

    program, _ = slow_server(tmp_path)
    with serving(folder, program=program, drain_seconds="0", **KEYS) as (client, process):
        replies = asyncio.run(asyncio.wait_for(talk(client, process), 120))
        ended(process)
    for text, last in replies:
        assert (last["finish_reason"], last["stop_reason"]) == ("length", "draining")
        rest = complete(replica, prompt="", state=last["state"], max_tokens=20)["text"]
        whole = complete(replica, **body | {"max_tokens": len(text) + 20})["text"]
        assert text + rest == whole


def test_a_draining_server_finishes_frames_and_lets_nobody_in(folder: Path, tmp_path: Path) -> None:
    program, slow = slow_server(tmp_path)

    async def talk(client: httpx.Client, process: Process) -> None:
        async with connected(client) as busy:
            begin = {"model": "printable", "prompt": "a", "max_tokens": 6_000}
            await busy.send(json.dumps(begin))
            await busy.send(json.dumps({"id": "waits", "max_tokens": 1}))
            pieces = [await next_frame(busy)]
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(until, lambda: client.get("/readyz").status_code == 503)
            with pytest.raises(websockets.InvalidStatus) as refused:
                async with connected(client):
                    pass
            assert refused.value.response.status_code == 503
            assert refused.value.response.headers["retry-after"]
            slow.unlink()
            with contextlib.suppress(websockets.ConnectionClosed):
                while True:
                    pieces.append(await next_frame(busy))
            assert busy.close_code == 1012
            assert pieces[-1]["error"]["code"] == "draining"
            assert pieces[-1]["state"]
            assert pieces[-2]["usage"]["completion_tokens"] == 6_000
            assert pieces[-2]["choices"][0]["stop_reason"] is None
            assert not any("id" in piece for piece in pieces)

    with serving(folder, program=program, drain_seconds="600") as (client, process):
        asyncio.run(asyncio.wait_for(talk(client, process), 120))
        ended(process)


def test_a_rolling_restart_of_two_replicas_loses_nothing(
    folder: Path, replica: httpx.Client
) -> None:
    port = str(free_port())
    text, state, refusals = "", None, 0

    def go_on(clients: list[httpx.Client]) -> None:
        nonlocal text, state, refusals
        begin = {"prompt": "", "state": state} if state else {"prompt": "To be", "seed": 6}
        for client in clients:
            with contextlib.suppress(httpx.TransportError):
                reply = client.post(COMPLETE, json=begin | {"max_tokens": 10, "return_state": True})
                if reply.status_code == 200:
                    (choice,) = reply.json()["choices"]
                    text, state = text + choice["text"], choice["state"]
                    return
                assert reply.status_code == 503
                refusals += 1
        raise AssertionError("no replica took it")

    with serving(folder, port=port, **KEYS) as (client, process):
        for _ in range(4):
            go_on([client, replica])
            go_on([replica, client])
        process.send_signal(signal.SIGTERM)
        for _ in range(20):
            go_on([client, replica])
        ended(process)
    with serving(folder, port=port, **KEYS) as (client, _):
        for _ in range(4):
            go_on([client, replica])
            go_on([replica, client])
    whole = complete(replica, prompt="To be", max_tokens=len(text), seed=6)["text"]
    assert text == whole
    assert len(text) == 10 * 36
