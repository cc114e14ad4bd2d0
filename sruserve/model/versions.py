"""The versions of a model: numeric folders in its own, or the model folder itself."""

import re
from pathlib import Path

CONFIG_FILE = "config.json"
FIRST = "1"  # the version of a model folder that has no numeric folders around it
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")


def versions(folder: Path) -> dict[str, Path]:
    """The model folder of each version in a model's folder, oldest first.

    A numeric folder without a config.json, and anything else, is passed over.
    """
    if (folder / CONFIG_FILE).is_file():
        return {FIRST: folder}
    found = (config.parent for config in folder.glob(f"*/{CONFIG_FILE}"))
    numbered = [path for path in found if _NUMBER.fullmatch(path.name)]
    return {path.name: path for path in sorted(numbered, key=lambda path: int(path.name))}


def newest(folder: Path) -> tuple[str, Path]:
    """The version with the highest number, and its model folder; without any, `folder` itself."""
    return next(reversed(versions(folder).items()), (FIRST, folder))
