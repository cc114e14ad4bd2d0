"""An hour among hostile clients: do honest clients notice, and do the server's resources stay flat?

    python -m bench.serve.soak                 # 70 minutes: 10 quiet ones, then an hour of attacks
    python -m bench.serve.soak --minutes 2     # only shows that it runs

A server with two workers, keys and Redis serves honest clients of all protocols, which check every
reply to the last bit. Then hostile clients join them. Each of the two tenants gets half of the
server, and the honest one needs less: about a third of two cores. One worker and Redis are killed
repeatedly (never the oldest worker, whose memory is measured). The report contains the times of
honest requests with and without the hostile ones, the resources of the oldest worker, and all
errors by kind. It needs redis-server (Debian: redis-server) and the extras grpc and redis. A missed
target does not fail the run, but is marked in the table.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep

from bench.report.arguments import command_line
from bench.report.machine import ROOT
from bench.report.report import Report
from bench.serve.models import CLASSIFIER, LANGUAGE_MODEL
from bench.serve.processes import Server, free_port, sruserve
from bench.serve.soak.observations import read
from bench.serve.soak.results import Phases, report_requests, report_resources
from bench.serve.soak.watch import Watch

_HONEST, _HOSTILE = "honest-key-0001", "hostile-key-0001"
_LOOK_SECONDS = 2.0
_QUIET_SHARE = 1 / 7
_KILL_WORKER, _KILL_REDIS = 1 / 6, 1 / 4  # intervals between kills, as shares of the attack
_OUTAGE_SECONDS = 2.0


class Soak:
    """One run.

    quiet, attack: seconds of each phase. ways: names of the attacks; empty: all.
    kills: time and process of each kill. begin, end: those of the attack, on the monotonic clock.
    """

    def __init__(self, quiet: float, attack: float, ways: Sequence[str], folder: Path) -> None:
        self.quiet, self.attack, self.ways, self.folder = quiet, attack, ways, folder
        self.redis_port = free_port()
        self.grpc_port = free_port()
        self.honest_log, self.hostile_log = folder / "honest", folder / "hostile"
        self.kills: list[tuple[float, str]] = []
        self.begin = self.end = 0.0
        self._redis: subprocess.Popen[bytes] | None = None
        self._running: dict[subprocess.Popen[bytes], Path] = {}  # clients, and their errors

    def run(self, report: Report) -> Watch:
        """Run the quiet phase, then the attack."""
        environment = {
            "SRUSERVE_WORKERS": "2",
            "SRUSERVE_GRPC_PORT": str(self.grpc_port),
            "SRUSERVE_API_KEYS": f"honest:{_HONEST},hostile:{_HOSTILE}",
            "SRUSERVE_STATE_KEYS": "a" * 64,
            "SRUSERVE_STORE": f"redis://127.0.0.1:{self.redis_port}/0",
        }
        with ExitStack() as stack:
            stack.callback(self._stop_redis)
            self._start_redis()
            server = stack.enter_context(
                sruserve("sruserve", [CLASSIFIER, LANGUAGE_MODEL], environment)
            )
            watch = Watch(server.pid)
            stack.enter_context(self._clients("ordinary", server, _HONEST, self.honest_log))
            report.progress(f"{self.quiet / 60:.0f} quiet minutes")
            self._watch_until(monotonic() + self.quiet, watch, kills=False)
            self.begin = monotonic()
            only = ["--only", *self.ways] if self.ways else []
            with self._clients("hostile", server, _HOSTILE, self.hostile_log, *only):
                report.progress(f"{self.attack / 60:.0f} minutes of attacks")
                self._watch_until(self.begin + self.attack, watch, kills=True)
            self.end = monotonic()
        return watch

    def _watch_until(self, end: float, watch: Watch, *, kills: bool) -> None:
        begin = monotonic()
        worker_at, redis_at = (begin + share * self.attack for share in (_KILL_WORKER, _KILL_REDIS))
        while (now := monotonic()) < end:
            watch.look()
            self._check_clients()
            if kills and now > worker_at:
                worker_at += _KILL_WORKER * self.attack
                youngest = watch.workers()[1:]
                if youngest:
                    youngest[-1].send_signal(signal.SIGKILL)
                    self.kills.append((now, "worker"))
            if kills and now > redis_at:
                redis_at += _KILL_REDIS * self.attack
                self.kills.append((now, "redis"))
                self._stop_redis()
                sleep(_OUTAGE_SECONDS)
                self._start_redis()
            sleep(_LOOK_SECONDS)

    def _start_redis(self) -> None:
        folder = str(self.folder)
        command = ["redis-server", "--port", str(self.redis_port), "--bind", "127.0.0.1"]
        command += ["--dir", folder, "--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        command += ["--logfile", f"{folder}/redis.log"]
        self._redis = subprocess.Popen(command)

    def _stop_redis(self) -> None:
        if self._redis is not None:
            self._redis.kill()
            self._redis.wait()

    @contextmanager
    def _clients(
        self, module: str, server: Server, key: str, log: Path, *options: str
    ) -> Iterator[None]:
        # Real clients have their own machines: keep their CPU use out of the times.
        nice = ["nice", "-n", "19" if module == "hostile" else "-10"]
        command = [*nice, sys.executable, "-m", f"bench.serve.soak.{module}"]
        command += [str(server.port), str(self.grpc_port), key, str(log), *options]
        errors = self.folder / f"{module}-errors"
        process = subprocess.Popen(command, cwd=ROOT, stderr=errors.open("w"))
        self._running[process] = errors
        try:
            yield
        finally:
            del self._running[process]
            process.kill()
            process.wait()

    def _check_clients(self) -> None:
        """Raise `ConnectionError` if a client process has ended: the figures would mean nothing."""
        for process, errors in self._running.items():
            if process.poll() is not None:
                raise ConnectionError(
                    f"a client process has ended; its errors: {errors.read_text()[-2000:]}"
                )


def main() -> int:
    args = _arguments()
    if shutil.which("redis-server") is None:
        print(
            "bench.serve.soak: redis-server is not installed (Debian: apt install redis-server)",
            file=sys.stderr,
        )
        return 1
    report = Report("soak", ("uvicorn", "uvloop", "redis", "grpcio"), args.minutes < 30)
    attack = args.minutes * 60
    quiet = attack * _QUIET_SHARE
    with tempfile.TemporaryDirectory(prefix="sruserve-soak-") as folder:
        soak = Soak(quiet, attack, args.ways, Path(folder))
        watch = soak.run(report)
        phases = Phases(soak.begin, soak.end, soak.kills)
        report_requests(report, phases, list(read(soak.honest_log)), list(read(soak.hostile_log)))
        report_resources(report, phases, watch.of_oldest())
    report.finish(args.results)
    return 0


def _arguments() -> argparse.Namespace:
    parser = command_line("bench.serve.soak", __doc__)
    parser.add_argument(
        "--minutes", type=float, default=60, help="length of the attack (default: 60)"
    )
    parser.add_argument("--ways", nargs="+", default=[], help="names of attacks (default: all)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
