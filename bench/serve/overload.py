"""A server at twice its capacity: its goodput, and its refusals of the rest."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from time import perf_counter

import uvloop

from bench.report.report import Report
from bench.report.samples import Samples
from bench.report.targets import Target
from bench.serve.http_client import HttpClient
from bench.serve.load import LoadFailed
from bench.serve.models import questions
from bench.serve.processes import sruserve

_PATH = "/v1/classify"
_CONNECTIONS = 32  # enough to keep the server busy while capacity is measured
_QUEUE = 64  # requests that may wait, which limits the time of accepted requests
_CHARACTERS = 16_000  # of one text: long, so that the load generator uses little of the machine
_P99_FACTOR = 5.0  # limit of the p99, in multiples of a full queue's time at capacity


def against_itself(report: Report, folder: Path, seconds: float, overload_seconds: float) -> None:
    """Measure goodput at twice the capacity, which is measured closed-loop on the same server."""
    text = " ".join(questions())
    body = json.dumps({"input": text[:_CHARACTERS]}).encode()
    with sruserve("sruserve", [folder], {"SRUSERVE_MAX_QUEUE_REQUESTS": str(_QUEUE)}) as server:
        report.progress("capacity")
        uvloop.run(_closed(server.port, body, 1.0))  # warm up
        before = uvloop.run(_closed(server.port, body, seconds))
        report.progress(f"twice the capacity of {before:.0f}/s for {overload_seconds:.0f} s")
        seen, waits = uvloop.run(_open(server.port, body, 2 * before, overload_seconds))
        report.progress("capacity")
        after = uvloop.run(_closed(server.port, body, seconds))
    strange = {status: count for status, count in seen.items() if status not in (200, 429)}
    if strange:
        raise LoadFailed(f"the server sent other statuses than 200 and 429: {strange}")
    capacity = (before + after) / 2
    case = f"twice the capacity for {overload_seconds:.0f} s"
    report.add_case(f"{case}: time of accepted requests", {"sruserve": Samples(tuple(waits), "ms")})
    goodput = seen[200] / overload_seconds
    report.check(f"{case}: goodput / capacity", goodput / capacity, "x", Target(minimum=0.9))
    report.check(f"{case}: refused with 429", seen[429] / overload_seconds, "/s")
    bound = _P99_FACTOR * 1e3 * _QUEUE / capacity
    p99 = Samples(tuple(waits), "ms").quantile(0.99)
    report.check(f"{case}: p99 of accepted requests", p99, "ms", Target(maximum=round(bound)))


async def _closed(port: int, body: bytes, seconds: float) -> float:
    """Return requests per second of connections that each send the next request after a reply."""
    until = perf_counter() + seconds
    done = 0

    async def ask() -> None:
        nonlocal done
        client = await HttpClient.connect(port)
        while perf_counter() < until:
            status, reply = await client.post(_PATH, body)
            if status != 200:
                raise LoadFailed(f"capacity: {status} {reply[:200]!r}")
            done += 1
        client.close()

    begin = perf_counter()
    await asyncio.gather(*(ask() for _ in range(_CONNECTIONS)))
    return done / (perf_counter() - begin)


async def _open(
    port: int, body: bytes, rate: float, seconds: float
) -> tuple[Counter[int], list[float]]:
    """Send requests at a fixed rate; returns their statuses, and the times of those with 200."""
    idle: list[HttpClient] = []
    seen: Counter[int] = Counter()
    waits: list[float] = []

    async def ask() -> None:
        client = idle.pop() if idle else await HttpClient.connect(port)
        begin = perf_counter()
        status, _ = await client.post(_PATH, body)
        seen[status] += 1
        if status == 200:
            waits.append((perf_counter() - begin) * 1e3)
        idle.append(client)

    begin = perf_counter()
    tasks: set[asyncio.Task[None]] = set()
    count = 0
    while (now := perf_counter() - begin) < seconds:
        while count < now * rate:
            count += 1
            task = asyncio.create_task(ask())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.sleep(0.002)
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    for client in idle:
        client.close()
    return seen, waits
