"""Our server against mosec, its event streams against its own engine, and its limits under load.

    python -m bench.serve            # about twelve minutes; needs an idle machine
    python -m bench.serve --quick    # only shows that it runs; its figures mean nothing

Every server runs the bundled models and gets requests in turn, in both orders. mosec 0.9.8 has the
classifier in one worker process, with batches of 64 and a wait of 1 ms: once with its defaults, to
which the targets apply, and once with msgspec for JSON. `sruserve, batches of 64` limits a step to
the tokens of 64 questions; `sruserve` and `sruserve, 2 workers` have the defaults. Then our server
is compared with itself: a minute at twice its capacity, a thousand WebSockets at once, ten thousand
idle streams, the longest requests of all routes, and a stream of a million characters. The load
generator is `wrk` if it is installed (Debian: wrk). A missed target does not fail the run,
but is marked in the table.
"""

import argparse
import sys

from bench.report.arguments import command_line
from bench.report.report import Report
from bench.serve.classify import against_mosec
from bench.serve.held_streams import among_idle
from bench.serve.load import LoadFailed, generator
from bench.serve.long_requests import LONG
from bench.serve.models import CLASSIFIER, LANGUAGE_MODEL
from bench.serve.overload import against_itself
from bench.serve.processes import StartFailed
from bench.serve.resume import against_fresh
from bench.serve.sockets import at_once
from bench.serve.stalls import behind_long_requests
from bench.serve.streams import against_engine

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
        behind_long_requests(report, 2)
        against_fresh(report, LANGUAGE_MODEL, 10_000, 3)
        return
    against_itself(report, CLASSIFIER, 10, 60)
    at_once(report, CLASSIFIER, 1000)
    among_idle(report, CLASSIFIER, 10_000, 200, 20)
    behind_long_requests(report, len(LONG))
    against_fresh(report, LANGUAGE_MODEL, 1_000_000, 100)


def _arguments() -> argparse.Namespace:
    parser = command_line("bench.serve", __doc__)
    parser.add_argument("--quick", action="store_true", help="one short round; nothing is stored")
    parser.add_argument(
        "--only",
        choices=("peers", "load"),
        help="only the comparisons, or only the limits under load (4 minutes)",
    )
    parser.add_argument("--rounds", type=int, default=7, help="turns of every server (default: 7)")
    parser.add_argument(
        "--seconds", type=int, default=4, help="load on a server in one turn (default: 4)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
