"""The CPU time and memory of the workers, which the kernel counts: read with the page.

prometheus-client exports them of a server with one process only.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from sruserve.server.metrics import definitions as series
from sruserve.server.metrics.files import living_workers, started_at

_PROC = Path("/proc")
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
_STARTED = time.time()


class ProcessCollector(Collector):
    """The workers of a server. folder: of their metrics; None: this process is the only one."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        started = _STARTED if self._folder is None else started_at(self._folder)
        pids = [os.getpid()] if self._folder is None else living_workers(self._folder)
        cpu, memory, files = (
            _family(each) for each in (series.WORKER_CPU, series.WORKER_MEMORY, series.WORKER_FILES)
        )
        for pid in pids:
            labels = {"worker": str(pid)}
            # One that has just ended has no folder; other systems have none at all.
            with suppress(OSError, ValueError):
                seconds, resident, open_files = _read(_PROC / str(pid))
                cpu.add_sample(series.WORKER_CPU.name, labels, seconds)
                memory.add_sample(series.WORKER_MEMORY.name, labels, resident)
                files.add_sample(series.WORKER_FILES.name, labels, open_files)
        start = _family(series.START)
        start.add_sample(series.START.name, {}, started)
        return start, cpu, memory, files

    def describe(self) -> Iterator[Metric]:
        """The families, so that registering does not read anything."""
        return map(_family, series.OF_PROCESSES)


def _family(collected: series.Collected) -> Metric:
    return Metric(collected.name.removesuffix("_total"), collected.help, collected.type)


def _read(folder: Path) -> tuple[float, float, float]:
    """CPU seconds, resident bytes and open files of a process."""
    # The second field, a name in parentheses, may contain anything.
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    user, system = int(fields[11]), int(fields[12])
    pages = int((folder / "statm").read_text().split()[1])
    return (user + system) / _TICKS, float(pages * _PAGE), float(len(os.listdir(folder / "fd")))
