"""Our server against mosec, its event streams against its own engine, and what it bears.

    python -m bench.serve            # about twelve minutes; wants an idle machine
    python -m bench.serve --quick    # does it run at all? Its figures mean nothing

Every server runs the bundled models and is asked in turns, forwards and backwards. mosec 0.9.8 has
the classifier in one worker process, with batches of 64 and 1 ms of waiting: once as it comes,
which is what the targets are held against, and once with msgspec for JSON. `sruserve, batches of
64` bounds its steps to as many tokens as 64 questions have; `sruserve` and `sruserve, 2 workers`
are the defaults. Then ours alone, held against itself: twice its capacity for a minute, a thousand
WebSockets at once, ten thousand idle streams, a stream with a million characters behind it. The
load generator is `wrk` if it is installed (Debian: wrk). A missed target does not fail the run: the
table says it.
"""

import argparse
import sys

from bench.arguments import command_line
from bench.classify import against_mosec
from bench.held import among_idle
from bench.load import LoadFailed, generator
from bench.models import CLASSIFIER, LANGUAGE_MODEL
from bench.overload import against_itself
from bench.processes import StartFailed
from bench.report import Report
from bench.resume import against_fresh
from bench.sockets import at_once
from bench.streams import against_engine

_PEERS = ("mosec", "uvicorn", "uvloop")


def main() -> int:
    args = _arguments()
    report = Report(f"serve-{args.only}" if args.only else "serve", _PEERS, args.quick)
    print(f"load from {generator()}\n", flush=True)
    try:
        if args.only != "load":
            _peers(report, args)
        if args.only != "peers":
            _load(report, args.quick)
    except (LoadFailed, StartFailed, ConnectionError) as error:
        print(f"bench.serve: {error}", file=sys.stderr)
        return 1
    report.finish(args.results)
    return 0


def _peers(report: Report, args: argparse.Namespace) -> None:
    if args.quick:
        against_mosec(report, CLASSIFIER, (1, 8), 1, 1)
        against_engine(report, LANGUAGE_MODEL, 4, 50, 1)
        return
    against_mosec(report, CLASSIFIER, (1, 32, 128), args.rounds, args.seconds)
    against_engine(report, LANGUAGE_MODEL, 64, 1000, args.rounds)


def _load(report: Report, quick: bool) -> None:
    if quick:
        against_itself(report, CLASSIFIER, 1, 2)
        at_once(report, CLASSIFIER, 20)
        among_idle(report, CLASSIFIER, 100, 10, 2)
        against_fresh(report, LANGUAGE_MODEL, 10_000, 3)
        return
    against_itself(report, CLASSIFIER, 10, 60)
    at_once(report, CLASSIFIER, 1000)
    among_idle(report, CLASSIFIER, 10_000, 200, 20)
    against_fresh(report, LANGUAGE_MODEL, 1_000_000, 100)


def _arguments() -> argparse.Namespace:
    parser = command_line("bench.serve", __doc__)
    parser.add_argument("--quick", action="store_true", help="one short round; nothing is kept")
    parser.add_argument(
        "--only", choices=("peers", "load"), help="the comparisons, or what it bears (4 minutes)"
    )
    parser.add_argument("--rounds", type=int, default=7, help="turns of every server (default: 7)")
    parser.add_argument(
        "--seconds", type=int, default=4, help="load on a server in one turn (default: 4)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
