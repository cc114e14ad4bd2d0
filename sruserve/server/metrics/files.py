"""The files in which workers count, for prometheus-client's multiprocess mode.

Every worker has its own files in one folder, and `/metrics` adds up all files. When a worker ends,
the supervisor moves its counts into the files of all ended workers. So the number of files depends
on the living workers alone, and no counter decreases.
"""

import fcntl
import logging
import math
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict, mmap_key

log = logging.getLogger("sruserve.server")

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # prometheus-client reads it when it is imported
# Counted by the supervisor, which has no other metric.
WORKER_RESTARTS = (
    "sru_worker_restarts_total",
    "Workers that ended while the server ran, and that it replaced.",
)
_PREFIX = "sruserve-metrics-"
_LOCK = "lock"
_ENDED = "ended"  # in a file's name, instead of a living worker's process id
_RESTARTS_KEY = mmap_key(  # as in the files of workers
    WORKER_RESTARTS[0].removesuffix("_total"), WORKER_RESTARTS[0], [], [], WORKER_RESTARTS[1]
)
_SUMS = ("counter", "histogram")
_FILE_BYTES = 64 << 10  # the initial size, as in prometheus-client
_RETRY_SECONDS = 60.0  # before a full file is tried and logged again
_ENTRY_BYTES = 4 + 8 + 16  # the longest entry without its key: length, padding, value and time


class MetricFolder:
    """A folder that a supervisor and its workers share. The last process to leave removes it.

    Each process has a shared lock on the folder, which the kernel releases when the process ends.
    So a folder without locks is stale, and the next start removes it.
    """

    def __init__(self, path: Path) -> None:
        """Join the folder; raises `FileNotFoundError` if it was removed."""
        self.path = path
        self._lock_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock_fd, fcntl.LOCK_SH)
        try:
            exists = os.path.samestat(os.stat(path), os.fstat(self._lock_fd))
        except FileNotFoundError:
            exists = False
        if not exists:  # another start removed it before it was locked
            os.close(self._lock_fd)
            raise FileNotFoundError(path)

    @classmethod
    def make(cls) -> "MetricFolder":
        """Create a folder, and remove those of killed servers."""
        for stale in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            _remove_if_stale(stale)
        while True:
            with suppress(FileNotFoundError):
                folder = cls(Path(tempfile.mkdtemp(prefix=_PREFIX)))
                (folder.path / _LOCK).touch()
                return folder

    def leave(self) -> None:
        """Release the folder, and remove it if no other process uses it."""
        os.close(self._lock_fd)
        _remove_if_stale(self.path)


def _remove_if_stale(path: Path) -> None:
    """Remove a folder that this class has made for this user, if no process uses it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # removed, another user's, or no folder
        return
    try:
        if os.fstat(descriptor).st_uid == os.getuid() and (path / _LOCK).exists():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:  # its server is alive
        pass
    finally:
        os.close(descriptor)


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """While the block runs, no counts of ended workers are moved."""
    with open(folder / _LOCK, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def started_at(folder: Path) -> float:
    """When the server started that made the folder, in Unix time."""
    return (folder / _LOCK).stat().st_mtime  # made first, and never written


def living_workers(folder: Path) -> list[int]:
    """The process ids of the workers that count in the folder."""
    names = {file.stem.rpartition("_")[2] for file in folder.glob("counter_*.db")}
    return sorted(int(name) for name in names if name.isdigit())


class EndedWorkers:
    """The counts of ended workers, in one file of each kind. Only the supervisor uses it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sums: dict[str, dict[str, float]] = {kind: {} for kind in _SUMS}
        self._unmoved: set[int] = set()
        self._unwritten: set[str] = set()
        self._logged = ""  # the last failure in the log; each move retries

    def add(self, pid: int) -> None:
        """Let `move` move the counts of a worker that has ended."""
        self._unmoved.add(pid)

    def count_restart(self) -> None:
        """Let `move` write that a worker has ended and is replaced."""
        counters = self._sums["counter"]
        counters[_RESTARTS_KEY] = counters.get(_RESTARTS_KEY, 0.0) + 1.0
        self._unwritten.add("counter")

    def move(self) -> None:
        """Move the counts of ended workers, unless `/metrics` is being read. Does not wait."""
        if not (self._unmoved or self._unwritten):
            return
        try:
            with open(self._folder / _LOCK, "a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for pid in self._unmoved:
                    for file in self._folder.glob(f"*_{pid}.*"):
                        self._take(file)
                self._unmoved.clear()
                for kind in sorted(self._unwritten):
                    self._write(kind)
            if not self._unwritten:
                self._logged = ""
        except BlockingIOError:
            return
        except FileNotFoundError as error:  # the folder was removed
            self._unmoved.clear()
            self._unwritten.clear()
            log.error("the counts of ended workers are lost: %s", error)
        except OSError as error:
            self._log_once(f"the counts of ended workers were not moved, and are retried: {error}")

    def _take(self, file: Path) -> None:
        """Add up a file and remove it, which makes room for the sums."""
        kind = file.name.split("_")[0]
        # Gauges of an ended worker mean nothing.
        if kind in self._sums and file.suffix == ".db":
            sums = self._sums[kind]
            try:
                for key, value, *_ in MmapedDict.read_all_values_from_file(file):  # type: ignore[no-untyped-call]
                    sums[key] = sums.get(key, 0.0) + value
            except (OSError, RuntimeError, ValueError, struct.error) as error:
                log.error("some counts of an ended worker are lost: %s: %s", file.name, error)
            self._unwritten.add(kind)
        file.unlink(missing_ok=True)

    def _write(self, kind: str) -> None:
        new = self._folder / f"{kind}.new"
        try:
            new.write_bytes(_packed(self._sums[kind]))
            new.replace(self._folder / f"{kind}_{_ENDED}.db")
            self._unwritten.discard(kind)
        except OSError as error:
            new.unlink(missing_ok=True)
            self._log_once(f"counts of ended workers are left out of /metrics: {error.strerror}")

    def _log_once(self, failure: str) -> None:
        if failure != self._logged:
            log.error("%s", failure)
            self._logged = failure


def _packed(sums: dict[str, float]) -> bytes:
    """Values as prometheus-client reads them from a file."""
    parts = []
    for key, value in sums.items():
        text = key.encode()
        padded = text + b" " * (8 - (len(text) + 4) % 8)
        parts.append(struct.pack(f"i{len(padded)}sdd", len(text), padded, value, 0.0))
    body = b"".join(parts)
    return struct.pack("ii", 8 + len(body), 0) + body


def preallocate_files() -> None:
    """Allocate this process's files before they are mapped, and as they grow.

    prometheus-client maps sparse files. Writing to a hole on a full file system raises SIGBUS,
    which ends the process. Call this before any metric is made.
    """
    values.MmapedDict = _PreallocatedFile  # type: ignore[attr-defined]


class _PreallocatedFile(MmapedDict):
    """A file without holes. While the disk is full, new series are counted in memory only.

    clock: monotonic seconds.
    """

    def __init__(self, filename: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = Path(filename), clock
        self._opened = False  # opened for its first value
        self._positions: dict[str, int] = {}
        self._full_until = -math.inf

    def close(self) -> None:
        if self._opened:
            super().close()  # type: ignore[no-untyped-call]

    def read_value(self, key: str) -> tuple[float, float]:
        try:
            return super().read_value(key)  # type: ignore[no-any-return, no-untyped-call]
        except OSError:
            return 0.0, 0.0

    def write_value(self, key: str, value: float, timestamp: float) -> None:
        try:  # noqa: SIM105  # `suppress` takes longer, on the hot path
            super().write_value(key, value, timestamp)  # type: ignore[no-untyped-call]
        except OSError:  # the next value is the whole sum again
            pass

    def _init_value(self, key: str) -> None:
        if self._clock() < self._full_until:
            raise OSError
        try:
            self._make_room(len(key.encode()) + _ENTRY_BYTES)
        except OSError as error:
            self._full_until = self._clock() + _RETRY_SECONDS
            log.error(
                "metrics cannot be written to %s: %s; /metrics lacks some of this worker's: make "
                "room there, or set TMPDIR to another folder",
                self._path.parent,
                error.strerror,
            )
            raise
        super()._init_value(key)  # type: ignore[no-untyped-call]

    def _make_room(self, size: int) -> None:
        """Make the file long enough for `size` more bytes; raises `OSError`."""
        if not self._opened:
            _allocate(self._path)
            super().__init__(str(self._path))  # type: ignore[no-untyped-call]
            self._opened = True
        capacity = self._capacity
        while self._used + size > capacity:
            capacity *= 2  # as super() does
        if capacity > self._capacity:
            os.posix_fallocate(self._f.fileno(), 0, capacity)


def _allocate(file: Path) -> None:
    """Make a file without holes. Other processes never see it shorter."""
    new = file.with_suffix(".new")
    try:
        with open(new, "wb") as opened:
            os.posix_fallocate(opened.fileno(), 0, _FILE_BYTES)
        new.replace(file)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
