"""Replace a folder by a new one, completely or not at all."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def replace_directory(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; if the block ends without an error, it becomes `path`.

    Until then, and after an error, `path` is unchanged, and folders made for it are gone. The old
    folder is deleted at the end. The swap is two renames on one file system: between them `path`
    may not exist, but it is never incomplete. A process that is killed leaves a temporary folder,
    which the next call for `path` removes.
    """
    with ExitStack() as undo:
        for parent in reversed(path.parents):
            if not parent.exists():
                parent.mkdir(exist_ok=True)
                undo.callback(_remove_if_empty, parent)
        _remove_leftovers(path)
        temporary = undo.enter_context(_temporary_folder(path))
        # The new folder has its final name already, for code in the block that reads the name.
        new, old = temporary / path.name, _old(temporary, path)
        new.mkdir()
        yield new
        try:
            if path.exists():
                path.rename(old)
            new.rename(path)
        except BaseException:
            if old.exists() and not path.exists():
                old.rename(path)
            raise


@contextmanager
def _temporary_folder(path: Path) -> Iterator[Path]:
    """Yield a folder beside `path`, locked while it is in use."""
    made, locked = False, ExitStack()
    while not made:
        folder = TemporaryDirectory(
            prefix=_prefix(path), dir=path.parent, ignore_cleanup_errors=True
        )
        locked.enter_context(folder)
        with suppress(FileNotFoundError):  # another process has taken it for a leftover
            locked.enter_context(_locked(Path(folder.name), wait=True))
            made = os.path.isdir(folder.name)
    with locked:
        yield Path(folder.name)


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary folders of processes that were killed; put back what they replaced."""
    with suppress(PermissionError):  # a parent that may be written and not be read
        leftovers = [entry for entry in path.parent.iterdir() if _is_temporary(entry, path)]
        for leftover in leftovers:
            with suppress(OSError), _locked(leftover, wait=False):
                _remove_leftover(leftover, path)


def _is_temporary(folder: Path, path: Path) -> bool:
    ours = re.escape(_prefix(path)) + "[a-z0-9_]{8}"
    return bool(re.fullmatch(ours, folder.name)) and not folder.is_symlink()


def _remove_leftover(leftover: Path, path: Path) -> None:
    old = _old(leftover, path)
    if {entry.name for entry in leftover.iterdir()} <= {path.name, old.name}:
        if old.exists() and not path.exists():
            old.rename(path)
        shutil.rmtree(leftover)


@contextmanager
def _locked(folder: Path, wait: bool) -> Iterator[None]:
    """Lock a folder; raises `OSError` if another process has it, or without waiting."""
    number = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        if wait:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(number, fcntl.LOCK_EX)
        else:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(number)


def _prefix(path: Path) -> str:
    """How a temporary folder's name begins; no other folder's does, such as a hidden copy's."""
    return f".{path.name}.sruserve-"


def _old(temporary: Path, path: Path) -> Path:
    """Return the place of the replaced folder in the temporary one."""
    return temporary / f"{path.name}.old"


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
