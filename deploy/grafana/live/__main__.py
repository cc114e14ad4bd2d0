"""Draw every dashboard with the data of a real run: `python -m deploy.grafana.live`.

Starts Redis, Prometheus and two servers, one of them with two workers, and clients whose number
rises and falls.
Writes docs/graphs/dashboards/*.svg. Needs the system packages prometheus and redis-server, and
takes five minutes.
"""

import math
import shutil
import socket
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from deploy.grafana.live import load, prometheus, server
from deploy.grafana.live.expressions import boards
from deploy.grafana.live.picture import drawn

OUTPUT = Path(__file__).parents[3] / "docs" / "graphs" / "dashboards"
_SECONDS, _SCRAPE_SECONDS, _INTERVAL, _POINTS = 300, 2.0, "15s", 100
_CROWD_SECONDS = 75.0


def main() -> int:
    programs = [shutil.which(name) for name in ("prometheus", "redis-server")]
    if None in programs:
        print("install the packages prometheus and redis-server", file=sys.stderr)
        return 1
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis_port, port = _free_port(), _free_port()
        stack.enter_context(server.redis(str(programs[1]), redis_port, folder))
        address = stack.enter_context(server.serving(redis_port))
        other = stack.enter_context(server.serving())
        instances = {"sruserve-1:8000": address, "sruserve-2:8000": other}
        scraped = stack.enter_context(
            prometheus.scraping(str(programs[0]), port, folder, instances, _SCRAPE_SECONDS)
        )
        begin = time.time()
        with (
            load.traffic(address, _pause),
            load.traffic(other, _pause, (load.classify, load.leave_streams)),
            load.client_of(address) as client,
        ):
            while time.time() < begin + _SECONDS:
                time.sleep(_CROWD_SECONDS)
                load.crowd(client)
                print(f"{time.time() - begin:.0f} of {_SECONDS} s", flush=True)
            end = time.time()
        OUTPUT.mkdir(parents=True, exist_ok=True)
        step = (end - begin) / _POINTS
        for name, board in boards().items():
            picture = drawn(
                board, lambda query: scraped.lines(query, begin, end, step), begin, end, _INTERVAL
            )
            (OUTPUT / f"{name}.svg").write_text(picture)
    return 0


def _pause() -> float:
    """Seconds before a client's next round: fewer and more of them, in waves."""
    return 0.4 * (1.3 + math.sin(time.monotonic() / 25))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
