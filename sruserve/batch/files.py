"""The files of a run: its output with those beside it, none of which may be the input."""

import os
import stat
from contextlib import suppress
from errno import EINVAL
from io import FileIO, UnsupportedOperation
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple

from sruserve.batch.errors import OutputError
from sruserve.model.atomic_file import check_replaceable


class RunFiles(NamedTuple):
    """The files that a run writes.

    errors: the lines of wrong inputs. progress: what the output is made of. new_progress: what
    becomes `progress` once it is whole.
    """

    output: Path
    errors: Path
    progress: Path
    new_progress: Path

    @classmethod
    def of(cls, output: Path) -> "RunFiles":
        """Return an output with the files beside it."""
        suffixes = (".errors", ".progress", ".progress.new")
        return cls(output, *(output.with_name(output.name + suffix) for suffix in suffixes))


def is_regular(file: IO[bytes]) -> bool:
    """Whether an open file is on a disk, where nobody else has to read or write first."""
    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except UnsupportedOperation:  # a stream without a descriptor
        return False


def open_to_append(path: Path) -> FileIO:
    """Open a file to read and to append to, or create it.

    Raises `OSError` for a link and for all but regular files, which other users of the folder may
    have put there since `check_output`.
    """
    file = FileIO(path, "ab+", opener=_open_no_link)
    if not is_regular(file):
        file.close()
        raise OSError(EINVAL, "not a regular file", str(path))
    return file


def _open_no_link(path: str, flags: int) -> int:
    # without O_NONBLOCK, opening a pipe may wait for its other end; regular files ignore it
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def check_output(output: Path, source: BinaryIO) -> None:
    """Check that a run to `output` takes nothing from its input `source`, or from other programs.

    Raises `OutputError` if one of its files is the input, and the `OSError` of `check_replaceable`.
    """
    for path in RunFiles.of(output):
        check_replaceable(path)
        with suppress(FileNotFoundError, UnsupportedOperation):  # a source without a descriptor
            if os.path.samestat(path.stat(), os.fstat(source.fileno())):
                raise OutputError(
                    f"{path} is the input, which the run would change: name another output"
                )
