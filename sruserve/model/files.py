"""Read an operator's files: only regular files, up to a size limit, each once."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EFBIG, EINVAL, ENXIO
from io import FileIO
from pathlib import Path
from stat import S_ISREG

from sruserve.model.machine import installed_memory, memory_limit

_DENSE_BYTES = 16 << 20  # a file of so few may have any holes
_MAX_HOLES = 8  # a file may be so many times as large as what is stored of it
_PART_BYTES = 1 << 20
_MAX_EXTENTS = 10_000  # of a file that are looked at
MAX_TEXT_BYTES = 128 << 20  # of a file with a vocabulary, labels, options or presets


@contextmanager
def open_regular(path: Path, max_bytes: int) -> Iterator[FileIO]:
    """Open a regular file for reading; raises `OSError` for other files and larger ones.

    A device has no end, and a pipe without a writer would block its reader forever. A file that
    is mostly holes takes no disk, but all the memory that its size states.
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
        if status.st_size > _DENSE_BYTES and _is_sparse(number, status.st_size):
            problem = (
                f"it has {status.st_size:,} bytes, but most are holes, which are not stored: make "
                "it again, or copy it by `cp --sparse=never` if it is to have so many zeros"
            )
            raise OSError(EINVAL, problem, str(path))
        yield file


def _is_sparse(number: int, size: int) -> bool:
    """Whether far fewer bytes of a file are stored than it has; leaves its position at 0."""
    stored = end = 0
    try:
        for _ in range(_MAX_EXTENTS):
            begin = os.lseek(number, end, os.SEEK_DATA)
            end = os.lseek(number, begin, os.SEEK_HOLE)
            stored += end - begin
            if stored * _MAX_HOLES >= size:
                return False
    except OSError as error:
        # ENXIO: no data after this place. Other errors: the filesystem does not know.
        return error.errno == ENXIO
    finally:
        os.lseek(number, 0, os.SEEK_SET)
    return True


def read_regular(path: Path, max_bytes: int = MAX_TEXT_BYTES) -> bytes:
    """Return the content of a file; raises `OSError` as `open_regular` does.

    The limit holds also for a file that grows meanwhile, or that states no size, as in /proc.
    """
    content = bytearray()
    with open_regular(path, max_bytes) as file:
        while part := file.read(min(_PART_BYTES, max_bytes + 1 - len(content))):
            content += part
    if len(content) > max_bytes:
        raise OSError(EFBIG, f"it has more than {max_bytes:,} bytes", str(path))
    return bytes(content)


def memory_bytes() -> int:
    """Return the bytes of memory that this process may use: no larger file can be loaded."""
    limit = memory_limit()
    return installed_memory() if limit is None else limit
