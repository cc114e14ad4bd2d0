"""Restart three replicas behind HAProxy in turn, under load of every protocol, and lose nothing.

    python -m bench.serve.rolling                  # four clients of each kind, one round: a minute
    python -m bench.serve.rolling --each 40 --rounds 5

It needs Debian's haproxy and redis-server, and `.[grpc,redis,bench]`. Each replica gets SIGTERM and
is started again. Clients continue by the rules of docs/operations.md; a request that fails, or a
text that differs by a character from that of an undisturbed server, fails the run.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

from bench.serve.rolling.clients import KINDS
from bench.serve.rolling.cluster import Cluster
from bench.serve.rolling.run import Outcome, roll


def main() -> int:
    parser = argparse.ArgumentParser("python -m bench.serve.rolling", description=__doc__)
    parser.add_argument("--each", type=int, default=4, help="clients of each kind (default: 4)")
    parser.add_argument("--rounds", type=int, default=1, help="restarts of each replica")
    parser.add_argument("--drain-seconds", type=int, default=2, help="of a replica (default: 2)")
    parser.add_argument("--pause", type=float, default=0.02, help="of a client between requests")
    arguments = parser.parse_args()
    os.environ.setdefault(
        "GOMP_SPINCOUNT", "1000"
    )  # as the server sets it before torch is imported
    begin = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        outcome = asyncio.run(_run(Path(folder), arguments))
    print(json.dumps({"seconds": round(perf_counter() - begin, 1), **asdict(outcome)}))
    good = not outcome.failures and not outcome.differing and not any(outcome.exit_codes)
    return 0 if good else 1


async def _run(folder: Path, arguments: argparse.Namespace) -> Outcome:
    with Cluster(folder, arguments.drain_seconds) as cluster:
        numbers = range(arguments.each)
        clients = [kind(cluster, n + 1, arguments.pause) for kind in KINDS for n in numbers]
        return await roll(cluster, clients, arguments.rounds)


if __name__ == "__main__":
    sys.exit(main())
