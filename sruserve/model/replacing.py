"""Put a new folder in the place of an old one, whole or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """An empty folder to fill; when the block ends without an error it becomes `path`.

    Until then, and after any error, `path` is as it was. What was there is deleted at the end. The
    swap is two renames on one file system: between them there may be no folder, never half of one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(
        prefix=f".{path.name}.", dir=path.parent, ignore_cleanup_errors=True
    ) as beside:
        # The new folder has its final name early, for whatever reads it in the block.
        new, old = Path(beside, path.name), Path(beside, f"{path.name}.old")
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
