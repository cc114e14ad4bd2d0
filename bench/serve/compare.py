"""This code beside another commit's, mostly the one before a change: is anything slower for it?

    make compare REF=HEAD~10
    python -m bench.serve.compare HEAD~10       # the same: four minutes; wants an idle machine

The other commit is installed into a temporary folder. Both servers run at the same time and are
asked in turns, forwards and backwards. A ratio is the median of the rounds' ratios. A missed
target does not fail the run: the table says it.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from time import perf_counter

import uvloop

from bench.arguments import command_line
from bench.load import LoadFailed, measure
from bench.machine import ROOT
from bench.models import CLASSIFIER, LANGUAGE_MODEL, questions
from bench.other_code import NoSuchCode, other_code
from bench.processes import Server, StartFailed, sruserve
from bench.report import Report
from bench.samples import Samples, in_turn
from bench.streams import over_http
from bench.targets import Target
from bench.wire import Wire

_NOW, _BEFORE = "now", "before"
_CONNECTIONS = (1, 32, 128)
_STREAMS, _TOKENS = 64, 400
_STEPS = 300

Measure = Callable[[Server], float]


def compare(report: Report, other: Path, rounds: int, seconds: int) -> None:
    """Everything that is measured, on both."""
    models = [CLASSIFIER, LANGUAGE_MODEL]
    with ExitStack() as stack:
        bodies = stack.enter_context(NamedTemporaryFile("w", suffix=".jsonl"))
        bodies.writelines(json.dumps({"input": text}) + "\n" for text in questions())
        bodies.flush()
        servers = {
            name: stack.enter_context(sruserve(name, models, None, checkout))
            for name, checkout in ((_NOW, ROOT), (_BEFORE, other))
        }
        measures: dict[str, Measure] = {
            f"classify, {count} connections: requests/s": partial(
                _classify, Path(bodies.name), count, seconds
            )
            for count in _CONNECTIONS
        }
        measures[f"{_STREAMS} completions at once: characters/s"] = _complete
        measures["steps of a held stream/s"] = _step
        found: dict[tuple[str, str], list[float]] = defaultdict(list)
        for turn in range(-1, rounds):  # the first round makes both warm
            for what, ask in measures.items():
                for name in in_turn(list(servers), turn):
                    report.doing(f"round {turn + 1} of {rounds}: {what}, {name}")
                    value = ask(servers[name])
                    if turn >= 0:
                        found[what, name].append(value)
    for what in measures:
        samples = {name: Samples(tuple(found[what, name]), "/s") for name in servers}
        report.measured(what, samples)
        ratio = samples[_NOW].over(samples[_BEFORE]).median
        report.check(f"{what}: now / before", ratio, "x", Target(least=0.97))


def _classify(bodies: Path, connections: int, seconds: int, server: Server) -> float:
    return measure(server.port, "/v1/classify", bodies, connections, seconds).requests_per_second


def _complete(server: Server) -> float:
    return uvloop.run(over_http(server.port, _STREAMS, _TOKENS))


def _step(server: Server) -> float:
    async def steps() -> float:
        wire = await Wire.connect(server.port)
        stream = await wire.ask("/v1/streams", {"model": CLASSIFIER.name})
        begin = perf_counter()
        for step in range(1, _STEPS + 1):
            body = {"step": step, "input": "how ", "more": True}
            await wire.ask(f"/v1/streams/{stream['id']}/steps", body)
        wire.close()
        return _STEPS / (perf_counter() - begin)

    return uvloop.run(steps())


def main() -> int:
    args = _arguments()
    report = Report("compare", ("uvicorn", "uvloop"), args.quick)
    try:
        report.doing(f"installing {args.other}")
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
    parser.add_argument("--quick", action="store_true", help="one short round; nothing is kept")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each (default: 7)")
    parser.add_argument("--seconds", type=int, default=3, help="load in one turn (default: 3)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
