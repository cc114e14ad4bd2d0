"""Twice the load that a server can bear: what it still does, and how it refuses the rest."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from time import perf_counter

import uvloop

from bench.load import LoadFailed
from bench.models import questions
from bench.processes import sruserve
from bench.report import Report
from bench.samples import Samples
from bench.targets import Target
from bench.wire import Wire

_PATH = "/v1/classify"
_CONNECTIONS = 32  # enough to keep the server busy while capacity is measured
_QUEUE = 64  # requests that may wait: what bounds the time that accepted work takes
_CHARACTERS = 16_000  # of one text: long, so that the load takes little beside the server
_PATIENCE = 5.0  # times as long as a full queue takes at capacity


def against_itself(report: Report, folder: Path, seconds: float, overload_seconds: float) -> None:
    """Goodput at twice the capacity; capacity is measured closed-loop on the same server."""
    text = " ".join(questions())
    body = json.dumps({"input": text[:_CHARACTERS]}).encode()
    with sruserve("sruserve", [folder], {"SRUSERVE_MAX_QUEUE_REQUESTS": str(_QUEUE)}) as server:
        report.doing("capacity")
        uvloop.run(_closed(server.port, body, 1.0))  # warm
        before = uvloop.run(_closed(server.port, body, seconds))
        report.doing(f"twice the capacity of {before:.0f}/s for {overload_seconds:.0f} s")
        seen, waits = uvloop.run(_open(server.port, body, 2 * before, overload_seconds))
        report.doing("capacity")
        after = uvloop.run(_closed(server.port, body, seconds))
    strange = {status: count for status, count in seen.items() if status not in (200, 429)}
    if strange:
        raise LoadFailed(f"beside 200 and 429 the server answered {strange}")
    capacity = (before + after) / 2
    case = f"twice the capacity for {overload_seconds:.0f} s"
    report.measured(f"{case}: time of accepted requests", {"sruserve": Samples(tuple(waits), "ms")})
    goodput = seen[200] / overload_seconds
    report.check(f"{case}: goodput / capacity", goodput / capacity, "x", Target(least=0.9))
    report.check(f"{case}: refused with 429", seen[429] / overload_seconds, "/s")
    bound = _PATIENCE * 1e3 * _QUEUE / capacity
    p99 = Samples(tuple(waits), "ms").quantile(0.99)
    report.check(f"{case}: p99 of accepted requests", p99, "ms", Target(most=round(bound)))


async def _closed(port: int, body: bytes, seconds: float) -> float:
    """Requests per second of connections that each send the next request after a reply."""
    until = perf_counter() + seconds
    done = 0

    async def ask() -> None:
        nonlocal done
        wire = await Wire.connect(port)
        while perf_counter() < until:
            status, reply = await wire.post(_PATH, body)
            if status != 200:
                raise LoadFailed(f"capacity: {status} {reply[:200]!r}")
            done += 1
        wire.close()

    begin = perf_counter()
    await asyncio.gather(*(ask() for _ in range(_CONNECTIONS)))
    return done / (perf_counter() - begin)


async def _open(
    port: int, body: bytes, rate: float, seconds: float
) -> tuple[Counter[int], list[float]]:
    """Requests at a fixed rate, whatever comes back: statuses, and times of those with 200."""
    idle: list[Wire] = []
    seen: Counter[int] = Counter()
    waits: list[float] = []

    async def ask() -> None:
        wire = idle.pop() if idle else await Wire.connect(port)
        begin = perf_counter()
        status, _ = await wire.post(_PATH, body)
        seen[status] += 1
        if status == 200:
            waits.append((perf_counter() - begin) * 1e3)
        idle.append(wire)

    begin = perf_counter()
    asked: set[asyncio.Task[None]] = set()
    count = 0
    while (now := perf_counter() - begin) < seconds:
        while count < now * rate:
            count += 1
            task = asyncio.create_task(ask())
            asked.add(task)
            task.add_done_callback(asked.discard)
        await asyncio.sleep(0.002)
    await asyncio.wait_for(asyncio.gather(*asked), 60)
    for wire in idle:
        wire.close()
    return seen, waits
