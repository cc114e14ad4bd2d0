"""Write a new file, completely or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EEXIST, EINVAL
from pathlib import Path
from secrets import token_hex
from stat import S_ISREG
from typing import BinaryIO


@contextmanager
def new_file(path: Path, replace: bool = False) -> Iterator[BinaryIO]:
    """Yield a file to write; if the block ends without an error, it becomes `path`, on disk.

    Until then, and after an error, `path` is unchanged. A process that is killed leaves a hidden
    file beside it. replace: an existing file may be replaced.

    Raises `FileExistsError`, before the block or at its end, and the other `OSError`s of
    `check_replaceable` and of writing.
    """
    check_replaceable(path)
    if not replace and os.path.lexists(path):
        raise FileExistsError(EEXIST, os.strerror(EEXIST), str(path))
    temporary = path.with_name(f".{path.name}.sruserve-{token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if replace:
            temporary.replace(path)
        else:
            os.link(temporary, path)  # unlike a rename, it replaces nothing
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def check_replaceable(path: Path) -> None:
    """Raise `OSError` if `path` is anything but a regular file, or nothing.

    To replace or remove a device, such as /dev/null, would take it from all programs, and of a link
    only the link would go.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not S_ISREG(mode):
        problem = "not a regular file, so it is not replaced: name another file"
        raise OSError(EINVAL, problem, str(path))
