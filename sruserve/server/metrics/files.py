"""The files that workers count in, for prometheus-client's multiprocess mode.

Every worker has some files of its own in one folder, and `/metrics` adds up what is in all of
them. What a worker has counted outlives it: the supervisor moves it into a file of all that have
ended, so that there are never more files than living workers need, and no counter goes back.
"""

import fcntl
import logging
import os
import shutil
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

log = logging.getLogger("sruserve.server")

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # prometheus-client reads it when it is imported
_PREFIX = "sruserve-metrics-"
_LOCK = "lock"
_ENDED = "ended"  # where a file of a living worker has its process id
_SUMS = ("counter", "histogram")
_FILE_BYTES = 64 << 10  # at first, and as prometheus-client would make them
_RETRY_SECONDS = 60.0  # until a full file is tried again, and is told of again
_ENTRY_BYTES = 4 + 8 + 16  # most of an entry beside its key: length, padding, value and time


class MetricFolder:
    """A folder that a supervisor and its workers share. Whoever leaves it last removes it.

    Each of them holds a shared lock on the folder, which the kernel releases however they end; so a
    folder that nobody holds is left over, and the next start removes it.
    """

    def __init__(self, path: Path) -> None:
        """Join the folder; raises `FileNotFoundError` if it is gone."""
        self.path = path
        self._held = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._held, fcntl.LOCK_SH)
        try:
            there = os.path.samestat(os.stat(path), os.fstat(self._held))
        except FileNotFoundError:
            there = False
        if not there:  # another start removed it before it was locked
            os.close(self._held)
            raise FileNotFoundError(path)

    @classmethod
    def make(cls) -> "MetricFolder":
        """A new one; those of servers that were killed are removed."""
        for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            _remove_if_left_over(left)
        while True:
            with suppress(FileNotFoundError):
                folder = cls(Path(tempfile.mkdtemp(prefix=_PREFIX)))
                (folder.path / _LOCK).touch()
                return folder

    def leave(self) -> None:
        """Hold the folder no more, and remove it if nobody else does."""
        os.close(self._held)
        _remove_if_left_over(self.path)


def _remove_if_left_over(path: Path) -> None:
    """Remove a folder that this class has made for us, and that nobody holds."""
    try:
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone, another user's, or no folder
        return
    try:
        if os.fstat(held).st_uid == os.getuid() and (path / _LOCK).exists():
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:  # its server lives
        pass
    finally:
        os.close(held)


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """While this lasts, no file of a worker that has ended is moved."""
    with open(folder / _LOCK, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


class EndedWorkers:
    """What workers that have ended counted, in one file of each kind. The supervisor's alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sums: dict[str, dict[str, float]] = {kind: {} for kind in _SUMS}
        self._unmoved: set[int] = set()
        self._unwritten: set[str] = set()
        self._told = ""  # the last failure, which is tried again at every move

    def add(self, pid: int) -> None:
        """A worker has ended: `move` its counts."""
        self._unmoved.add(pid)

    def move(self) -> None:
        """Move the counts of workers that have ended, as soon as nobody reads. Does not wait."""
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
                self._told = ""
        except BlockingIOError:
            return
        except FileNotFoundError as error:  # somebody has removed the folder
            self._unmoved.clear()
            self._unwritten.clear()
            log.error("what ended workers counted is lost: %s", error)
        except OSError as error:
            self._tell(f"what ended workers counted is not moved: {error}")

    def _take(self, file: Path) -> None:
        """Add up what is in a file, and remove it: so there is room for the sums."""
        kind = file.name.split("_")[0]
        # A gauge tells what is, and of this worker nothing is any more.
        if kind in self._sums and file.suffix == ".db":
            sums = self._sums[kind]
            try:
                for key, value, *_ in MmapedDict.read_all_values_from_file(file):  # type: ignore[no-untyped-call]
                    sums[key] = sums.get(key, 0.0) + value
            except (OSError, RuntimeError, ValueError, struct.error) as error:
                log.error("what an ended worker counted is lost in part: %s: %s", file.name, error)
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
            self._tell(f"counts of ended workers are left out of /metrics: {error.strerror}")

    def _tell(self, failure: str) -> None:
        if failure != self._told:
            log.error("%s", failure)
            self._told = failure


def _packed(sums: dict[str, float]) -> bytes:
    """Values as prometheus-client reads them from a file."""
    parts = []
    for key, value in sums.items():
        text = key.encode()
        padded = text + b" " * (8 - (len(text) + 4) % 8)
        parts.append(struct.pack(f"i{len(padded)}sdd", len(text), padded, value, 0.0))
    body = b"".join(parts)
    return struct.pack("ii", 8 + len(body), 0) + body


def keep_files_whole() -> None:
    """Allocate this process's files, at first and as they grow, before they are mapped.

    prometheus-client maps files that are holes, and to write into a hole of a full file system is a
    SIGBUS, which ends the process. Must be called before any metric is made.
    """
    values.MmapedDict = _WholeFile  # type: ignore[assignment, attr-defined]


class _WholeFile(MmapedDict):
    """A file without holes. What there is no room for is counted in memory only, until there is."""

    def __init__(self, filename: str) -> None:
        self._path = Path(filename)
        self._opened = False  # it is for its first value
        self._positions: dict[str, int] = {}
        self._full_until = 0.0

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
        except OSError:  # the next value is the whole sum, too
            pass

    def _init_value(self, key: str) -> None:
        if time.monotonic() < self._full_until:
            raise OSError
        try:
            self._make_room(len(key.encode()) + _ENTRY_BYTES)
        except OSError as error:
            self._full_until = time.monotonic() + _RETRY_SECONDS
            log.error(
                "metrics cannot be kept in %s: %s; /metrics leaves some of this worker out: make "
                "room there, or name another folder with TMPDIR",
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
    """Make a file without holes. Others never see it shorter than it is."""
    new = file.with_suffix(".new")
    try:
        with open(new, "wb") as opened:
            os.posix_fallocate(opened.fileno(), 0, _FILE_BYTES)
        new.replace(file)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise
