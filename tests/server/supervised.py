"""A supervisor of two small workers, as a program: `FOLDER MANNER DRAIN_SECONDS`.

A module of its own, because each of its processes imports it, and torch takes seconds.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sruserve.server.metrics.files import EndedWorkers
from sruserve.server.supervision import RestartPolicy
from sruserve.server.supervisor import Supervisor


def work(folder: Path, manner: str, beat: Callable[[], None]) -> int:
    """A worker that beats until SIGTERM, or behaves in some other manner."""
    name = str(os.getpid())
    if manner == "fails":
        (folder / name).touch()
        return 1
    stop: list[int] = []

    def on_signal(number: int, _: object) -> None:
        stop.append(number)
        (folder / f"{name}-signalled").touch()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    beat()
    (folder / name).touch()  # now signals may come
    while not stop or (manner == "stays" and signal.SIGINT not in stop) or manner == "never":
        beat()
        time.sleep(0.05)
        if manner == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
    return 0


def main(folder: str, manner: str, drain_seconds: str) -> int:
    """The supervisor, in a process of its own."""
    path = Path(folder)
    work_of_worker = partial(work, path, manner)
    policy = RestartPolicy(beat_seconds=8, deaths=1)
    return Supervisor(work_of_worker, 2, policy, float(drain_seconds), EndedWorkers(path)).run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
