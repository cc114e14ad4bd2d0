"""Read an operator's files: only regular files, up to a size limit, each once."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EFBIG, EINVAL
from io import FileIO
from pathlib import Path
from stat import S_ISREG

from sruserve.model.machine import installed_memory, memory_limit

MAX_TEXT_BYTES = 128 << 20  # of a file with a vocabulary, labels, options or presets


@contextmanager
def open_regular(path: Path, max_bytes: int) -> Iterator[FileIO]:
    """Open a regular file for reading; raises `OSError` for other files and larger ones.

    A device has no end, and a pipe without a writer would block its reader forever.
    """
    # without O_NONBLOCK, opening a pipe waits for a writer; regular files ignore it
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with FileIO(number, "rb") as file:
        status = os.fstat(number)
        if not S_ISREG(status.st_mode):
            raise OSError(EINVAL, "not a regular file", str(path))
        if status.st_size > max_bytes:
            problem = f"it has {status.st_size:,} bytes; the limit is {max_bytes:,}"
            raise OSError(EFBIG, problem, str(path))
        yield file


def read_regular(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Return the content of a file; raises `OSError` as `open_regular` does."""
    with open_regular(path, max_bytes) as file:
        return file.read()


def memory_bytes() -> int:
    """Return the bytes of memory that this process may use: no larger file can be loaded."""
    limit = memory_limit()
    return installed_memory() if limit is None else limit
