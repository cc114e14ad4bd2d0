"""Replace a folder by a new one, completely or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def replace_directory(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; if the block ends without an error, it becomes `path`.

    Until then, and after an error, `path` is unchanged. The old folder is deleted at the end. The
    swap is two renames on one file system: between them `path` may not exist, but it is never
    incomplete.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(
        prefix=f".{path.name}.", dir=path.parent, ignore_cleanup_errors=True
    ) as temporary:
        # The new folder has its final name already, for code in the block that reads the name.
        new, old = Path(temporary, path.name), Path(temporary, f"{path.name}.old")
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
