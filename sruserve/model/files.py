"""Read an operator's files: regular ones, of a bounded size, each once."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EFBIG, EINVAL
from io import FileIO
from pathlib import Path
from stat import S_ISREG

MOST_TEXT_BYTES = 128 << 20  # of a vocabulary, labels, options, presets


@contextmanager
def open_regular(path: Path, most_bytes: int) -> Iterator[FileIO]:
    """Open a file to read it; raises `OSError` unless it is a regular one of at most so many bytes.

    A device has no end, and a pipe that nobody writes to would hold up its reader for ever.
    """
    # without O_NONBLOCK, opening a pipe waits for a writer; regular files ignore it
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with FileIO(number, "rb") as file:
        found = os.fstat(number)
        if not S_ISREG(found.st_mode):
            raise OSError(EINVAL, "not a regular file", str(path))
        if found.st_size > most_bytes:
            what = f"it has {found.st_size:,} bytes and may have {most_bytes:,}"
            raise OSError(EFBIG, what, str(path))
        yield file


def read_regular(path: Path, most_bytes: int = MOST_TEXT_BYTES) -> bytes:
    """The whole content of a file; raises `OSError` as `open_regular` does."""
    with open_regular(path, most_bytes) as file:
        return file.read()


def memory_bytes() -> int:
    """The memory of this machine: nothing larger can be loaded."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
