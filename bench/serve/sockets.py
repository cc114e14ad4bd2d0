"""A thousand WebSockets that open at once."""

import asyncio
import json
from pathlib import Path
from time import perf_counter

import uvloop
from websockets.asyncio.client import connect

from bench.report.report import Report
from bench.report.samples import Samples
from bench.report.targets import Target
from bench.serve.load import LoadFailed
from bench.serve.processes import sruserve

_TIMEOUT_SECONDS = 60


def at_once(report: Report, folder: Path, sockets: int) -> None:
    """Measure the time of each socket from its first byte to its first reply."""
    with sruserve("sruserve", [folder]) as server:
        report.progress(f"{sockets} sockets at once")
        uvloop.run(_all(server.port, 10))  # warm up
        times = uvloop.run(_all(server.port, sockets))
    case = f"{sockets:,} WebSockets opened at once"
    samples = Samples(tuple(times), "ms")
    report.add_case(f"{case}: until the first answer", {"sruserve": samples})
    report.check(f"{case}: the last answer", max(times), "ms", Target(maximum=10_000))


async def _all(port: int, sockets: int) -> list[float]:
    """Return milliseconds until each socket's first reply; all stay open until the last reply."""
    answered = 0
    all_answered = asyncio.Event()

    async def one() -> float:
        nonlocal answered
        begin = perf_counter()
        async with connect(
            f"ws://127.0.0.1:{port}/v1/stream", open_timeout=_TIMEOUT_SECONDS, compression=None
        ) as socket:
            await socket.send(json.dumps({"input": "how far is it ", "more": True}))
            reply = json.loads(await socket.recv())
            took = (perf_counter() - begin) * 1e3
            if "error" in reply:
                raise LoadFailed(f"a WebSocket got the error {reply}")
            answered += 1
            if answered == sockets:
                all_answered.set()
            await all_answered.wait()
        return took

    every = asyncio.gather(*(one() for _ in range(sockets)))
    return await asyncio.wait_for(every, _TIMEOUT_SECONDS)
