"""The versions of a model: numeric subfolders of its folder, or the model folder itself."""

import re
from pathlib import Path

CONFIG_FILE = "config.json"
FIRST = "1"  # the version of a model folder without numeric subfolders
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")


def versions(folder: Path) -> dict[str, Path]:
    """Return the model folder of each version in a model's folder, oldest first.

    Skips numeric folders without a config.json, and everything else.
    """
    if (folder / CONFIG_FILE).is_file():
        return {FIRST: folder}
    folders = (config.parent for config in folder.glob(f"*/{CONFIG_FILE}"))
    numbered = [path for path in folders if _NUMBER.fullmatch(path.name)]
    return {path.name: path for path in sorted(numbered, key=lambda path: int(path.name))}


def newest(folder: Path) -> tuple[str, Path]:
    """Return the highest version and its model folder; without versions, "1" and `folder`."""
    return next(reversed(versions(folder).items()), (FIRST, folder))
