"""What an open stream costs: bytes of its state token and in Redis, and CPU time of its requests.

    python -m bench.serve.sizing            # about a minute
    python -m bench.serve.sizing --quick    # only shows that it runs; its figures mean nothing

It needs Debian's redis-server and `.[redis]`. CPU time is that of the server's process, so that
other work on the machine changes it little; requests of all kinds take turns.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import redis

from bench.report.arguments import command_line
from bench.report.report import Report
from bench.report.samples import Samples, in_turn
from bench.serve.http_client import HttpClient
from bench.serve.models import CLASSIFIER, LANGUAGE_MODEL
from bench.serve.processes import Server, redis_server, sruserve
from sruserve.server.settings import Settings

CHECKPOINTS: int = Settings.model_fields["stream_checkpoints"].default
_CONNECTIONS = 16
_TICK_SECONDS = 0.01  # in which Linux counts CPU time
_CHUNK = {"input": "How far is it from Denver ", "more": True}
_STEPS: dict[Path, tuple[str, dict[str, Any]]] = {
    CLASSIFIER: ("/v1/classify", _CHUNK),
    LANGUAGE_MODEL: ("/v1/completions", {"prompt": "To be, or not to be", "max_tokens": 20}),
}


def main() -> int:
    parser = command_line("bench.serve.sizing", __doc__)
    parser.add_argument("--quick", action="store_true", help="few streams; nothing is stored")
    arguments = parser.parse_args()
    report = Report("sizing", ("redis",), arguments.quick)
    streams, rounds = (20, 1) if arguments.quick else (500, 5)
    with redis_server() as settings:
        for model in _STEPS:
            _measure(report, model, settings, streams, rounds)
    report.finish(arguments.results)
    return 0


def _measure(
    report: Report, model: Path, settings: dict[str, str], streams: int, rounds: int
) -> None:
    with (
        sruserve("sruserve", [model], settings) as server,
        redis.Redis.from_url(settings["SRUSERVE_STORE"]) as database,
    ):
        database.flushall()
        token = asyncio.run(_token(server.port, model))
        report.check(f"{model.name}: characters of a state token", len(token), "")
        empty = _memory(database)
        ids = asyncio.run(_each(server.port, streams, _create))
        steps = count(1)
        for step in range(1, CHECKPOINTS + 1):
            asyncio.run(_steps(server.port, model, ids, next(steps)))
            if step in (1, CHECKPOINTS):
                size = (_memory(database) - empty) / streams
                states = "1 state" if step == 1 else f"{step} states"
                report.check(f"{model.name}: bytes in Redis with {states}", size, "")
        path, body = _STEPS[model]
        token_body = {**body, "state": token, "return_state": True}

        def plain() -> None:
            asyncio.run(_each(server.port, streams, lambda c, _: c.post_json(path, body)))

        def with_token() -> None:
            asyncio.run(_each(server.port, streams, lambda c, _: c.post_json(path, token_body)))

        def held() -> None:
            asyncio.run(_steps(server.port, model, ids, next(steps)))

        candidates = {"alone": plain, "with a state token": with_token, "held in Redis": held}
        times = _cpu_times(server, candidates, rounds, streams)
        report.add_case(f"{model.name}: CPU time of a request", times)
        for name in ("with a state token", "held in Redis"):
            ratio = times[name].over(times["alone"]).median
            report.check(f"{model.name}: CPU time of a request {name} / alone", ratio, "x")


def _cpu_times(
    server: Server, candidates: dict[str, Callable[[], None]], rounds: int, requests: int
) -> dict[str, Samples]:
    """The CPU microseconds of the server for a request of each candidate, in turns."""
    process = psutil.Process(server.pid)
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds):
        for name in in_turn(list(candidates), turn):
            begin = sum(process.cpu_times()[:2])
            candidates[name]()
            spent = sum(process.cpu_times()[:2]) - begin
            samples[name].append(max(spent, _TICK_SECONDS) / requests * 1e6)
    return {name: Samples(tuple(values), "µs") for name, values in samples.items()}


def _memory(database: redis.Redis) -> int:
    size: int = database.info("memory")["used_memory_dataset"]
    return size


async def _token(port: int, model: Path) -> str:
    path, body = _STEPS[model]
    client = await HttpClient.connect(port)
    reply = await client.post_json(path, {**body, "return_state": True})
    client.close()
    state: str = (reply.get("results") or reply["choices"])[0]["state"]
    return state


async def _create(client: HttpClient, _: int) -> str:
    stream: str = (await client.post_json("/v1/streams", {}))["id"]
    return stream


async def _steps(port: int, model: Path, ids: list[str], step: int) -> None:
    """One step of each stream."""
    body = {"step": step, **_STEPS[model][1]}

    async def one(client: HttpClient, number: int) -> None:
        await client.post_json(f"/v1/streams/{ids[number]}/steps", body)

    await _each(port, len(ids), one)


async def _each(
    port: int, times: int, request: Callable[[HttpClient, int], Awaitable[Any]]
) -> list[Any]:
    """Send requests over a few connections, and return the replies."""
    numbers = iter(range(times))
    replies: list[Any] = []

    async def some() -> None:
        client = await HttpClient.connect(port)
        replies.extend([await request(client, number) for number in numbers])
        client.close()

    await asyncio.gather(*(some() for _ in range(_CONNECTIONS)))
    return replies


if __name__ == "__main__":
    sys.exit(main())
