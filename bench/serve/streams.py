"""Concurrent completions over HTTP as event streams, against the bare engine."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import IO, cast

import uvloop

from bench.report.machine import ROOT
from bench.report.report import Report
from bench.report.samples import Samples, in_turn
from bench.report.targets import Target
from bench.serve.bare_engine import PROMPT
from bench.serve.load import LoadFailed
from bench.serve.processes import sruserve

_END = b"data: [DONE]\n\n"
_LONGEST_SECONDS = 120


def against_engine(report: Report, folder: Path, streams: int, tokens: int, rounds: int) -> None:
    """Measure characters/s of `streams` completions at once, by our server and by its engine."""
    http, engine = "over HTTP", "bare engine"
    speeds: dict[str, list[float]] = {http: [], engine: []}
    command = [sys.executable, "-m", "bench.serve.bare_engine", str(folder)]
    with (
        sruserve("sruserve", [folder]) as server,
        subprocess.Popen(
            command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process,
    ):
        assert process.stdin
        assert process.stdout
        process.stdout.readline()
        for turn in range(-1, rounds):  # the first round warms both up
            for name in in_turn(list(speeds), turn):
                report.progress(f"round {turn + 1} of {rounds}: {streams} streams, {name}")
                if name == http:
                    speed = uvloop.run(over_http(server.port, streams, tokens))
                else:
                    speed = _ask(process.stdin, process.stdout, streams, tokens)
                if turn >= 0:
                    speeds[name].append(speed)
        process.stdin.close()
    samples = {name: Samples(tuple(values), "/s") for name, values in speeds.items()}
    case = f"{streams} completions of {tokens} tokens at once"
    report.add_case(f"{case}: characters", samples)
    ratio = samples[http].over(samples[engine]).median
    report.check(f"{case}: characters/s over HTTP / bare engine", ratio, "x", Target(minimum=0.8))


def _ask(into: IO[str], out: IO[str], streams: int, tokens: int) -> float:
    into.write(f"{streams} {tokens}\n")
    into.flush()
    characters, seconds = out.readline().split()
    return int(characters) / float(seconds)


async def over_http(port: int, streams: int, tokens: int) -> float:
    """Send all requests at once; returns characters/s. Texts are parsed after the last stream."""
    loop = asyncio.get_running_loop()
    connected = [
        await loop.create_connection(EventStream, "127.0.0.1", port) for _ in range(streams)
    ]
    begin = perf_counter()
    for seed, (_, stream) in enumerate(connected):
        stream.send({"prompt": PROMPT, "max_tokens": tokens, "seed": seed, "stream": True})
    await asyncio.wait_for(asyncio.gather(*(s.done for _, s in connected)), _LONGEST_SECONDS)
    seconds = perf_counter() - begin
    return sum(len(stream.text(tokens)) for _, stream in connected) / seconds


class EventStream(asyncio.Protocol):
    """One request and its raw reply, with minimal work during the measurement."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parts: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def send(self, request: dict[str, object]) -> None:
        body = json.dumps(request).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        self._transport.write(head.encode() + body)

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)

    def connection_lost(self, _: Exception | None) -> None:
        self.done.set_result(None)

    def text(self, tokens: int) -> str:
        """Return the completion's text; raises `LoadFailed` unless it is complete."""
        reply = b"".join(self._parts)
        head, _, body = reply.partition(b"\r\n\r\n")
        lines = [line for line in body.split(b"\n") if line.startswith(b"data: {")]
        if not head.startswith(b"HTTP/1.1 200") or _END not in body or not lines:
            raise LoadFailed(f"a stream broke: {reply[:300]!r}")
        choices = [json.loads(line[6:])["choices"][0] for line in lines]
        if choices[-1]["finish_reason"] != "length":
            raise LoadFailed(f"a stream of {tokens} tokens ended in {choices[-1]}")
        return "".join(choice["text"] for choice in choices)
