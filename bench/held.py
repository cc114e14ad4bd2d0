"""Ten thousand streams that the server holds, and the few among them that are in use."""

import asyncio
from pathlib import Path
from time import perf_counter

import psutil
import uvloop

from bench.processes import Server, sruserve
from bench.report import Report
from bench.samples import Samples
from bench.targets import Target
from bench.wire import Wire

_CONNECTIONS = 50
_WORDS = ("how", "far", "is", "it", "from", "Denver", "to", "Aspen")


def among_idle(report: Report, folder: Path, idle: int, active: int, steps: int) -> None:
    """Memory of an idle stream, and the time of a step with none and with all of them there."""
    with sruserve("sruserve", [folder]) as server:
        alone = uvloop.run(_steps(server.port, active, steps))
        before = _resident_bytes(server)
        report.doing(f"opening {idle} streams")
        uvloop.run(_open(server.port, idle))
        grown = _resident_bytes(server) - before
        report.doing(f"{active} streams in use")
        among = uvloop.run(_steps(server.port, active, steps))
    samples = {"no others": Samples(tuple(alone), "ms"), "among them": Samples(tuple(among), "ms")}
    case = f"{idle:,} idle streams"
    report.measured(f"{case}: a step of {active} active ones", samples)
    report.check(f"{case}: memory of one", grown / idle / 1024, "KiB", Target(most=16))
    p99 = {name: found.quantile(0.99) for name, found in samples.items()}
    report.check(f"{case}: p99 of {active} active ones", p99["among them"], "ms")
    ratio = p99["among them"] / p99["no others"]
    report.check(f"{case}: the same / with no others", ratio, "x", Target(most=1.25))


async def _open(port: int, streams: int) -> None:
    """Streams with one word behind each, so that each has a state."""
    numbers = iter(range(streams))

    async def some() -> None:
        wire = await Wire.connect(port)
        for number in numbers:
            stream = await wire.ask("/v1/streams", {})
            word = _WORDS[number % len(_WORDS)] + " "
            body = {"step": 1, "input": word, "more": True}
            await wire.ask(f"/v1/streams/{stream['id']}/steps", body)
        wire.close()

    await asyncio.gather(*(some() for _ in range(_CONNECTIONS)))


async def _steps(port: int, streams: int, steps: int) -> list[float]:
    """Milliseconds of each step of streams that all take a word at a time, one a second or so."""
    times: list[float] = []

    async def one(number: int) -> None:
        wire = await Wire.connect(port)
        stream = await wire.ask("/v1/streams", {})
        await asyncio.sleep(number / streams)  # not all at the same moment
        for step in range(1, steps + 1):
            body = {"step": step, "input": _WORDS[step % len(_WORDS)] + " ", "more": True}
            begin = perf_counter()
            await wire.ask(f"/v1/streams/{stream['id']}/steps", body)
            took = perf_counter() - begin
            times.append(took * 1e3)
            await asyncio.sleep(max(0.0, 1 - took))
        wire.close()

    await asyncio.gather(*(one(number) for number in range(streams)))
    return times


def _resident_bytes(server: Server) -> int:
    found: int = psutil.Process(server.pid).memory_info().rss
    return found
