"""Hostile clients, each with its own attack: `python -m bench.serve.soak.hostile …`.

All attacks are bounded: they go to one server on this machine and end with the soak.
"""

import argparse
import asyncio
import base64
import gzip
import json
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from websockets.asyncio.client import connect

from bench.serve.soak.expected import CLASSIFIER, LANGUAGE_MODEL
from bench.serve.soak.http2 import unfinished
from bench.serve.soak.http_client import Http
from bench.serve.soak.observations import Log, Refused

_IMPATIENT_SECONDS = 1.0  # after which an impatient client leaves
_BODY = 8 << 20
_GRAMMARS: tuple[dict[str, Any], ...] = (
    {"regex": "a{100000000}"},
    {"regex": "((a{1000}){1000}){1000}"},
    {"regex": "(?i)(\\pL|\\pN){2000}"},
    {"json_schema": {"allOf": [{"type": "string", "pattern": f".*{i}.*"} for i in range(60)]}},
    {"json_schema": {"type": "array", "minItems": 1 << 30, "items": {"type": "string"}}},
)


class Hostile:
    """The ports, the key and the requests that attacks share."""

    def __init__(self, arguments: argparse.Namespace, log: Log) -> None:
        self.port, self.grpc_port, self.key = (
            arguments.port, arguments.grpc_port, arguments.key,
        )  # fmt: skip
        self.log = log

    async def post(
        self, kind: str, path: str, body: Any, timeout_seconds: float | None = None
    ) -> None:
        """Post with the hostile key; leave after `timeout_seconds`, even without a reply."""
        async with Http(self.port, self.key) as http:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await self.log.time(kind, lambda: http.ask(path, body))

    async def send(self, data: bytes, seconds: float) -> None:
        """Send bytes, and wait `seconds` for a reply."""
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(data)
                with suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await writer.drain()
                        await reader.read()
            finally:
                writer.close()


async def grammars(self: Hostile) -> None:
    """Grammars that need more memory than there is; the client leaves."""
    body = {"model": LANGUAGE_MODEL, "prompt": "a", **random.choice(_GRAMMARS)}
    await self.post("hostile grammar", "/v1/completions", body, _IMPATIENT_SECONDS)


async def colons(self: Hostile) -> None:
    """A text that takes a tokenizer long; the client leaves."""
    body = {"model": CLASSIFIER, "input": ":" * (1 << 20)}
    await self.post("hostile text", "/v1/classify", body, 0.1)


async def words(self: Hostile) -> None:
    """Words that are in no cache."""
    text = " ".join(random.randbytes(2000).hex() for _ in range(200))
    await self.post("hostile words", "/v1/classify", {"model": CLASSIFIER, "input": text})


async def crowd(self: Hostile) -> None:
    """The largest allowed number of inputs in a request."""
    body = {"model": LANGUAGE_MODEL, "input": ["to be or not to be " * 20] * 1024}
    await self.post("hostile crowd", "/v1/score", body)


async def logprobs(self: Hostile) -> None:
    """A small request for a large reply."""
    body = {"model": LANGUAGE_MODEL, "prompt": "a", "max_tokens": 90_000, "logprobs": 20}
    await self.post("hostile logprobs", "/v1/completions", body, 20)


async def hog(self: Hostile) -> None:
    """The longest allowed completion, many times."""
    body = {"model": LANGUAGE_MODEL, "prompt": "a", "n": 64, "max_tokens": 1500, "stream": True}
    async with Http(self.port, self.key) as http:
        with suppress(TimeoutError):
            async with asyncio.timeout(20):
                await self.log.time("hostile hog", lambda: http.events("/v1/completions", body))


async def values(self: Hostile) -> None:
    """Valid JSON that takes long to parse."""
    body = b'{"input":[' + b",".join([b"1"] * 2_000_000) + b"]}"
    await self.send(_request("/v1/score", body, self.key), 10)


async def forks(self: Hostile) -> None:
    """Thousands of forked streams."""
    async with Http(self.port, self.key) as http:

        async def ask() -> None:
            stream = await http.ask("/v1/streams", {"model": CLASSIFIER, "idle_seconds": 60})
            for _ in range(20):
                await http.ask(f"/v1/streams/{stream['id']}/fork", {"n": 256})

        await self.log.time("hostile forks", ask)


async def left_forks(self: Hostile) -> None:
    """Hundreds of forks whose client does not wait for them."""
    async with Http(self.port, self.key) as http:
        stream = await http.ask("/v1/streams", {"model": CLASSIFIER, "idle_seconds": 60})
    for _ in range(20):
        await self.post("hostile forks", f"/v1/streams/{stream['id']}/fork", {"n": 256}, 0.05)


async def giant(self: Hostile) -> None:
    """A request that is larger than the queue, followed at once by another one."""
    body = {"model": LANGUAGE_MODEL, "prompt": "a" * (1 << 20), "n": 128, "max_tokens": 1}
    text = json.dumps(body).encode()
    request = _request("/v1/completions", text, self.key)
    await self.send(request + request, 5)


async def pipelines(self: Hostile) -> None:
    """Pipelined requests without a pause, and heads with thousands of headers."""
    short = b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n" * 2000
    long = b"GET /livez HTTP/1.1\r\nhost: a\r\n" + b"a:\r\n" * 15_000 + b"\r\n"
    await asyncio.gather(*(self.send(each, 5) for each in 10 * (short, long)))


async def packed(self: Hostile) -> None:
    """A few kilobytes that decompress to the largest allowed body."""
    body = gzip.compress(b" " * _BODY)
    head = _request(f"/v2/models/{CLASSIFIER}/infer", b"", self.key, length=len(body))
    head = head.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")
    await asyncio.gather(*(self.send(head + body, 5) for _ in range(20)))


async def deaf(self: Hostile) -> None:
    """Requests hundreds of pages and reads none of them."""
    with suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 10)
        try:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(b"GET /metrics HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 300)
            await asyncio.sleep(20)
        finally:
            writer.close()


async def slow_bodies(self: Hostile) -> None:
    """Bodies that arrive one byte at a time."""
    head = _request("/v1/classify", b"", self.key, length=_BODY)
    with suppress(OSError):
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(head)
            for _ in range(60):
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(1)
        finally:
            writer.close()


async def unfinished_bodies(self: Hostile) -> None:
    """Bodies without their last byte."""
    head = _request("/v1/classify", b"", self.key, length=_BODY)
    await self.send(head + bytes(_BODY - 1), 20)


async def connections(self: Hostile) -> None:
    """Connections that send nothing."""
    await asyncio.gather(*(self.send(b"", 20) for _ in range(30)))


async def garbage(self: Hostile) -> None:
    """Random bytes instead of HTTP."""
    await self.send(random.randbytes(random.randrange(1, 100_000)), 2)


async def sockets(self: Hostile) -> None:
    """WebSockets with invalid frames."""
    with suppress(Exception):  # the server may close the connection at any time
        headers = {"authorization": f"Bearer {self.key}"}
        url = f"ws://127.0.0.1:{self.port}/v1/stream"
        async with connect(url, additional_headers=headers, open_timeout=20) as socket:
            for _ in range(50):
                await socket.send(random.choice(["{", "[]", '{"op":"state"}', '{"input": 1}']))
            await asyncio.sleep(10)


async def frames(self: Hostile) -> None:
    """Hundreds of thousands of empty frames."""
    key = base64.b64encode(random.randbytes(16))
    head = (
        b"GET /v1/stream HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\n"
        b"connection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: " + key
    )
    head += b"\r\nauthorization: Bearer " + self.key.encode() + b"\r\n\r\n"
    # The frames of an empty masked text that never ends.
    first, continuation = b"\x01\x80\0\0\0\0", b"\0\x80\0\0\0\0"
    await self.send(head + first + continuation * 200_000, 5)


async def tokens(self: Hostile) -> None:
    """Invalid state tokens."""
    state = base64.urlsafe_b64encode(random.randbytes(1 << 16)).decode().rstrip("=")
    body = {"model": CLASSIFIER, "input": "a", "state": state}
    await self.post("hostile token", "/v1/classify", body)


async def scrapers(self: Hostile) -> None:
    """Metrics pages without a pause."""
    with suppress(Exception):
        async with Http(self.port, None) as http:
            for _ in range(50):
                await http.request("/metrics", None)


async def calls(self: Hostile) -> None:
    """gRPC without a key: messages that never end."""
    path = random.choice(
        ("/grpc.health.v1.Health/Check", "/inference.GRPCInferenceService/ModelInfer")
    )
    with suppress(Exception):
        await unfinished(self.grpc_port, path, 100, _BODY - 1000, 15)


async def watchers(self: Hostile) -> None:
    """gRPC without a key: calls that never end."""
    with suppress(Exception):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.grpc_port}") as channel:
            health = health_pb2_grpc.HealthStub(channel)
            calls = [health.Watch(health_pb2.HealthCheckRequest()) for _ in range(500)]
            await asyncio.gather(*(each.read() for each in calls), return_exceptions=True)
            await asyncio.sleep(10)


async def paths(self: Hostile) -> None:
    """gRPC without a key: method names that are not valid UTF-8."""
    with suppress(Exception):
        await unfinished(self.grpc_port, "/\udcff", 10, 100, 1)


Attack = Callable[[Hostile], Awaitable[None]]
ATTACKS: dict[Attack, tuple[int, float]] = {  # number at a time, and seconds between two
    grammars: (4, 1), colons: (4, 2), words: (1, 5), crowd: (2, 1), logprobs: (1, 5), hog: (2, 5),
    values: (1, 5), forks: (2, 2), slow_bodies: (30, 1), unfinished_bodies: (10, 5),
    connections: (5, 1), garbage: (2, 1), sockets: (20, 1), tokens: (1, 1), scrapers: (4, 0.1),
    calls: (2, 5), watchers: (2, 5), left_forks: (2, 5), giant: (1, 5), pipelines: (2, 5),
    frames: (2, 5), paths: (1, 5), packed: (1, 5), deaf: (10, 5),
}  # fmt: skip


async def _again(attack: Attack, hostile: Hostile, pause: float) -> None:
    while True:
        with suppress(OSError, EOFError, Refused):
            await attack(hostile)
        await asyncio.sleep(random.uniform(0.5, 1.5) * pause)


def _request(path: str, body: bytes, key: str, length: int = 0) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {length or len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _main(arguments: argparse.Namespace) -> None:
    with arguments.log.open("a") as file:
        hostile = Hostile(arguments, Log(file))
        chosen = [
            attack for attack in ATTACKS if attack.__name__ in (arguments.only or attack.__name__)
        ]
        await asyncio.gather(
            *(
                _again(attack, hostile, ATTACKS[attack][1])
                for attack in chosen
                for _ in range(ATTACKS[attack][0])
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.serve.soak.hostile", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("grpc_port", type=int)
    parser.add_argument("key")
    parser.add_argument("log", type=Path)
    names = [attack.__name__ for attack in ATTACKS]
    parser.add_argument("--only", nargs="+", choices=names, help="names of attacks")
    asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    main()
