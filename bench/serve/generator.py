"""Our own load generator, for machines without `wrk`: asyncio connections with minimal HTTP.

`python -m bench.serve.generator CONNECTIONS SECONDS URL` prints the same JSON as `load.lua`.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import cast
from urllib.parse import urlsplit

import uvloop

from bench.report.samples import Samples


class LoadStatistics:
    """The latencies and errors of all connections."""

    def __init__(self, requests: list[bytes], until: float) -> None:
        self.requests, self.until = requests, until
        self.turn = 0
        self.milliseconds: list[float] = []
        self.errors = 0

    def next(self) -> bytes:
        self.turn += 1
        return self.requests[self.turn % len(self.requests)]


class Connection(asyncio.Protocol):
    """Sends a request, waits for its complete reply, and sends the next one."""

    def __init__(self, statistics: LoadStatistics) -> None:
        self._statistics = statistics
        self._reply = b""
        self._begin = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self._send()

    def data_received(self, data: bytes) -> None:
        self._reply += data
        if not _is_whole(self._reply):
            return
        now = perf_counter()
        self._statistics.milliseconds.append((now - self._begin) * 1e3)
        self._statistics.errors += not self._reply.startswith(b"HTTP/1.1 200")
        self._reply = b""
        if now < self._statistics.until:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        if perf_counter() < self._statistics.until:
            self._statistics.errors += 1
        self.done.set_result(None)

    def _send(self) -> None:
        self._begin = perf_counter()
        self._transport.write(self._statistics.next())


def _is_whole(reply: bytes) -> bool:
    """Whether a reply with a content-length is complete."""
    head, end, body = reply.partition(b"\r\n\r\n")
    if not end:
        return False
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
    return len(body) >= int(fields[b"content-length"])


async def _run(connections: int, seconds: float, url: str) -> dict[str, float]:
    target = urlsplit(url)
    assert target.hostname
    assert target.port
    host, port = target.hostname, target.port
    head = f"POST {target.path} HTTP/1.1\r\nhost: {target.netloc}\r\n"
    head += "content-type: application/json\r\ncontent-length: "
    bodies = Path(os.environ["BENCH_BODIES"]).read_bytes().splitlines()
    requests = [f"{head}{len(body)}\r\n\r\n".encode() + body for body in bodies]
    begin = perf_counter()
    statistics = LoadStatistics(requests, begin + seconds)
    loop = asyncio.get_running_loop()
    connected = [
        await loop.create_connection(lambda: Connection(statistics), host, port)
        for _ in range(connections)
    ]
    await asyncio.wait_for(asyncio.gather(*(each.done for _, each in connected)), seconds + 20)
    latencies = Samples(tuple(statistics.milliseconds), "ms")
    return {
        "requests": len(latencies.values),
        "seconds": perf_counter() - begin,
        "p50_ms": latencies.median,
        "p99_ms": latencies.quantile(0.99),
        "errors": statistics.errors,
    }


if __name__ == "__main__":
    print(json.dumps(uvloop.run(_run(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]))))
