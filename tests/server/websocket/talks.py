"""Talks with the server through the client of the package `websockets`."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import httpx
import websockets
from websockets.asyncio.client import ClientConnection

from tests.server.websocket.sockets import SECONDS

T = TypeVar("T")
GENERATE = {"model": "characters", "prompt": "To be", "seed": 3}


def run(talk: Callable[[], Awaitable[T]]) -> T:
    return asyncio.run(asyncio.wait_for(talk(), SECONDS))


@contextlib.asynccontextmanager
async def connected(client: httpx.Client, **options: Any) -> AsyncIterator[ClientConnection]:
    url = str(client.base_url).replace("http", "ws", 1).rstrip("/") + "/v1/stream"
    options = {"open_timeout": SECONDS, "compression": None, "ping_interval": None} | options
    async with websockets.connect(url, **options) as connection:
        yield connection


async def ask(connection: ClientConnection, **frame: Any) -> dict[str, Any]:
    """Send a frame and take its one reply."""
    await connection.send(json.dumps(frame))
    return await next_frame(connection)


async def next_frame(connection: ClientConnection) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(await connection.recv())
    return reply


async def completed(connection: ClientConnection, **frame: Any) -> tuple[str, dict[str, Any]]:
    """The whole text that a prompt is continued with, and the last piece."""
    await connection.send(json.dumps(frame))
    text = ""
    while True:
        piece = await next_frame(connection)
        (choice,) = piece["choices"]
        text += choice["text"]
        if choice["finish_reason"] is not None:
            return text, piece


def over_http(client: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    parsed: dict[str, Any] = reply.json()
    return parsed
