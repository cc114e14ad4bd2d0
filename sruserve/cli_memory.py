"""Limit the memory of a command that reads a file of another party."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sruserve.model.files import memory_bytes

_FACTOR = 8  # times the files: read, converted, written and loaded back
_FLOOR_BYTES = 4 << 30
_ARENA_BYTES = 128 << 20  # of address space that the allocator reserves for a thread
_STACK_BYTES = 8 << 20
_PARTS = ("", ".onnx", ".index", ".meta")  # files that may have others beside them
_THREADS = 2  # for each core: torch's and those of a library beside it


@contextmanager
def limited_memory(path: Path) -> Iterator[None]:
    """In the block, let this process add only so much memory as reading `path` may need.

    What would take more ends as out of memory, not by the operating system. Only for the process of
    a command that then ends: the limit is one of all threads.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _used_bytes() + _needed_bytes(_file_bytes(path))
    known = [bound for bound in (soft, hard, limit) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(known), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _needed_bytes(file_bytes: int) -> int:
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    stack = _STACK_BYTES if stack == resource.RLIM_INFINITY else stack
    threads = _THREADS * (os.cpu_count() or 1) * (_ARENA_BYTES + stack)
    data = min(_FACTOR * file_bytes + _FLOOR_BYTES, memory_bytes())
    return data + 2 * file_bytes + threads  # files that are mapped take address space alone


def _file_bytes(path: Path) -> int:
    """Return the bytes of the file; with those beside it, if they may belong to it."""
    try:
        suffix = path.suffix.lower()
        if path.is_file() and suffix not in _PARTS and not suffix.startswith(".data-"):
            return path.stat().st_size
        folder = path if path.is_dir() else path.parent
        return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    except OSError:  # the reader has the better message
        return 0


def _used_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 16 << 30  # a system without it; torch's libraries are mapped already
    return pages * os.sysconf("SC_PAGE_SIZE")
