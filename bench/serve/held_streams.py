"""Ten thousand idle server-held streams, and a few active ones among them."""

import asyncio
from pathlib import Path
from time import perf_counter

import psutil
import uvloop

from bench.report.report import Report
from bench.report.samples import Samples
from bench.report.targets import Target
from bench.serve.http_client import HttpClient
from bench.serve.processes import Server, sruserve

_CONNECTIONS = 50
_WORDS = ("how", "far", "is", "it", "from", "Denver", "to", "Aspen")


def among_idle(report: Report, folder: Path, idle: int, active: int, steps: int) -> None:
    """Measure an idle stream's memory, and a step's time without and with all idle streams."""
    with sruserve("sruserve", [folder]) as server:
        alone = uvloop.run(_steps(server.port, active, steps))
        before = _resident_bytes(server)
        report.progress(f"opening {idle} streams")
        uvloop.run(_open(server.port, idle))
        grown = _resident_bytes(server) - before
        report.progress(f"{active} streams in use")
        among = uvloop.run(_steps(server.port, active, steps))
    samples = {"no others": Samples(tuple(alone), "ms"), "among them": Samples(tuple(among), "ms")}
    case = f"{idle:,} idle streams"
    report.add_case(f"{case}: a step of {active} active ones", samples)
    report.check(f"{case}: memory of one", grown / idle / 1024, "KiB", Target(maximum=16))
    p99 = {name: each.quantile(0.99) for name, each in samples.items()}
    report.check(f"{case}: p99 of {active} active ones", p99["among them"], "ms")
    ratio = p99["among them"] / p99["no others"]
    report.check(f"{case}: the same / with no others", ratio, "x", Target(maximum=1.25))


async def _open(port: int, streams: int) -> None:
    """Open streams with one word each, so that each has a state."""
    numbers = iter(range(streams))

    async def some() -> None:
        client = await HttpClient.connect(port)
        for number in numbers:
            stream = await client.post_json("/v1/streams", {})
            word = _WORDS[number % len(_WORDS)] + " "
            body = {"step": 1, "input": word, "more": True}
            await client.post_json(f"/v1/streams/{stream['id']}/steps", body)
        client.close()

    await asyncio.gather(*(some() for _ in range(_CONNECTIONS)))


async def _steps(port: int, streams: int, steps: int) -> list[float]:
    """Return the milliseconds of each step of streams that take about one word per second."""
    times: list[float] = []

    async def one(number: int) -> None:
        client = await HttpClient.connect(port)
        stream = await client.post_json("/v1/streams", {})
        await asyncio.sleep(number / streams)  # spread the streams over a second
        for step in range(1, steps + 1):
            body = {"step": step, "input": _WORDS[step % len(_WORDS)] + " ", "more": True}
            begin = perf_counter()
            await client.post_json(f"/v1/streams/{stream['id']}/steps", body)
            took = perf_counter() - begin
            times.append(took * 1e3)
            await asyncio.sleep(max(0.0, 1 - took))
        client.close()

    await asyncio.gather(*(one(number) for number in range(streams)))
    return times


def _resident_bytes(server: Server) -> int:
    resident: int = psutil.Process(server.pid).memory_info().rss
    return resident
