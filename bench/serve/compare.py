"""This code against another commit, usually the one before a change: is anything slower?

    make compare REF=HEAD~10
    python -m bench.serve.compare HEAD~10       # the same: four minutes; needs an idle machine

The other commit is installed into a temporary folder. Both servers run at the same time and get
load in turn, in both orders: five rounds and one to warm up, of 3 seconds for each server and each
of four numbers of connections, take two and a half minutes. A ratio is the median of the rounds'
ratios. A missed target does not fail the run, but is marked in the table. The result's name has the
commit's. Steps of streams are measured if the other code has them; those in Redis need redis-server
and `.[redis]`, too.
"""

import argparse
import json
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import perf_counter

import uvloop

from bench.report.arguments import command_line
from bench.report.machine import ROOT
from bench.report.report import Report
from bench.report.samples import Samples, in_turn
from bench.report.targets import Target
from bench.serve.http_client import HttpClient
from bench.serve.load import LoadFailed, measure
from bench.serve.models import CLASSIFIER, LANGUAGE_MODEL, questions
from bench.serve.other_code import NoSuchCode, name_of, other_code
from bench.serve.processes import Server, StartFailed, redis_server, sruserve
from bench.serve.streams import over_http

_NOW, _BEFORE = "now", "before"
_CONNECTIONS = (1, 32, 64, 128)
_STREAMS, _TOKENS = 64, 400
_STEPS = 300

Measure = Callable[[Server], float]


def compare(report: Report, other: Path, rounds: int, seconds: int) -> None:
    """Run all measurements on both, which serve the other code's models: it may not read ours."""
    with ExitStack() as stack:
        bodies = stack.enter_context(NamedTemporaryFile("w", suffix=".jsonl"))
        bodies.writelines(json.dumps({"input": text}) + "\n" for text in questions())
        bodies.flush()
        servers = _start(stack, other)
        measures: dict[str, tuple[Measure, dict[str, Server]]] = {}
        for count in _CONNECTIONS:
            classify = partial(_classify, Path(bodies.name), count, seconds)
            measures[f"classify, {count} connections: requests/s"] = classify, servers
        measures[f"{_STREAMS} completions at once: characters/s"] = _complete, servers
        if uvloop.run(_holds_streams(servers[_BEFORE])):
            measures["steps of a held stream/s"] = _step, servers
            if shutil.which("redis-server") and find_spec("redis"):
                in_redis = _start(stack, other, in_redis=True)
                measures["steps of a stream in Redis/s"] = _step, in_redis
        values: dict[tuple[str, str], list[float]] = defaultdict(list)
        for turn in range(-1, rounds):  # the first round warms both up
            for label, (ask, candidates) in measures.items():
                for name in in_turn(list(candidates), turn):
                    report.progress(f"round {turn + 1} of {rounds}: {label}, {name}")
                    value = ask(candidates[name])
                    if turn >= 0:
                        values[label, name].append(value)
    for label in measures:
        samples = {name: Samples(tuple(values[label, name]), "/s") for name in servers}
        report.add_case(label, samples)
        ratio = samples[_NOW].over(samples[_BEFORE]).median
        report.check(f"{label}: now / before", ratio, "x", Target(minimum=0.97))


def _start(stack: ExitStack, other: Path, *, in_redis: bool = False) -> dict[str, Server]:
    """Start both servers, each with a Redis of its own if streams are to be there."""
    models = [other / folder.relative_to(ROOT) for folder in (CLASSIFIER, LANGUAGE_MODEL)]
    servers: dict[str, Server] = {}
    for name, checkout in ((_NOW, ROOT), (_BEFORE, other)):
        settings = stack.enter_context(redis_server()) if in_redis else None
        servers[name] = stack.enter_context(sruserve(name, models, settings, checkout))
    return servers


def _classify(bodies: Path, connections: int, seconds: int, server: Server) -> float:
    return measure(server.port, "/v1/classify", bodies, connections, seconds).requests_per_second


def _complete(server: Server) -> float:
    return uvloop.run(over_http(server.port, _STREAMS, _TOKENS))


async def _holds_streams(server: Server) -> bool:
    """Whether the code is new enough to hold streams."""
    client = await HttpClient.connect(server.port)
    status, _ = await client.post("/v1/streams", {"model": CLASSIFIER.name})
    client.close()
    return status != 404


def _step(server: Server) -> float:
    async def steps() -> float:
        client = await HttpClient.connect(server.port)
        stream = await client.post_json("/v1/streams", {"model": CLASSIFIER.name})
        begin = perf_counter()
        for step in range(1, _STEPS + 1):
            body = {"step": step, "input": "how ", "more": True}
            await client.post_json(f"/v1/streams/{stream['id']}/steps", body)
        client.close()
        return _STEPS / (perf_counter() - begin)

    return uvloop.run(steps())


def main() -> int:
    args = _arguments()
    try:
        before = name_of(args.other)
        report = Report(f"compare-{before}", ("uvicorn", "uvloop"), args.quick)
        report.progress(f"installing {args.other}")
        with other_code(args.other) as other:
            if args.quick:
                compare(report, other, 1, 1)
            else:
                compare(report, other, args.rounds, args.seconds)
    except (LoadFailed, StartFailed, ConnectionError, NoSuchCode) as error:
        print(f"bench.serve.compare: {error}", file=sys.stderr)
        return 1
    report.finish(args.results)
    return 0


def _arguments() -> argparse.Namespace:
    parser = command_line("bench.serve.compare", __doc__)
    parser.add_argument("other", help="a commit to compare with, or a checkout with its kernel")
    parser.add_argument("--quick", action="store_true", help="one short round; nothing is stored")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (default: 5)")
    parser.add_argument("--seconds", type=int, default=3, help="load in one turn (default: 3)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
