"""A thousand WebSockets that open at once."""

import asyncio
import json
from pathlib import Path
from time import perf_counter

import uvloop
from websockets.asyncio.client import connect

from bench.load import LoadFailed
from bench.processes import sruserve
from bench.report import Report
from bench.samples import Samples
from bench.targets import Target

_PATIENCE_SECONDS = 60


def at_once(report: Report, folder: Path, sockets: int) -> None:
    """How long each takes from its first byte until it has its first answer."""
    with sruserve("sruserve", [folder]) as server:
        report.doing(f"{sockets} sockets at once")
        uvloop.run(_all(server.port, 10))  # warm
        times = uvloop.run(_all(server.port, sockets))
    case = f"{sockets:,} WebSockets opened at once"
    found = Samples(tuple(times), "ms")
    report.measured(f"{case}: until the first answer", {"sruserve": found})
    report.check(f"{case}: the last answer", max(times), "ms", Target(most=10_000))


async def _all(port: int, sockets: int) -> list[float]:
    """Milliseconds until each has its first answer; all stay open until the last one has."""
    answered = 0
    everybody = asyncio.Event()

    async def one() -> float:
        nonlocal answered
        begin = perf_counter()
        async with connect(
            f"ws://127.0.0.1:{port}/v1/stream", open_timeout=_PATIENCE_SECONDS, compression=None
        ) as socket:
            await socket.send(json.dumps({"input": "how far is it ", "more": True}))
            reply = json.loads(await socket.recv())
            took = (perf_counter() - begin) * 1e3
            if "error" in reply:
                raise LoadFailed(f"a socket was told {reply}")
            answered += 1
            if answered == sockets:
                everybody.set()
            await everybody.wait()
        return took

    every = asyncio.gather(*(one() for _ in range(sockets)))
    return await asyncio.wait_for(every, _PATIENCE_SECONDS)
