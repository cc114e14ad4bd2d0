"""The versions of a model: numeric subfolders of its folder, or the model folder itself."""

import re
from pathlib import Path

CONFIG_FILE = "config.json"
ONNX_FILE, STEP_FILE = "model.onnx", "step.onnx"  # graphs of sequences, and of one step
FIRST = "1"  # the version of a model folder without numeric subfolders
VERSION_MARK = "@"  # between a model's name and a version in an id
_MARKERS = (CONFIG_FILE, ONNX_FILE)
_NUMBER = re.compile(r"[1-9][0-9]{0,17}")


def versions(folder: Path) -> dict[str, Path]:
    """Return the model folder of each version in a model's folder, oldest first.

    Skips numeric folders without a config.json or model.onnx, and everything else.
    """
    if any((folder / name).is_file() for name in _MARKERS):
        return {FIRST: folder}
    numbered = [path for path in _below(folder) if _NUMBER.fullmatch(path.name)]
    return {path.name: path for path in sorted(numbered, key=lambda path: int(path.name))}


def hidden_versions(folder: Path) -> list[str]:
    """The numeric folders in a model folder that are not served, because it is one itself."""
    if versions(folder).get(FIRST) != folder:
        return []
    return sorted((p.name for p in _below(folder) if _NUMBER.fullmatch(p.name)), key=int)


def newest(folder: Path) -> tuple[str, Path]:
    """Return the highest version and its model folder; without versions, "1" and `folder`."""
    return next(reversed(versions(folder).items()), (FIRST, folder))


def _below(folder: Path) -> set[Path]:
    """The model folders in a folder."""
    return {file.parent for name in _MARKERS for file in folder.glob(f"*/{name}")}


def is_onnx(folder: Path) -> bool:
    """Whether a model folder is run by ONNX Runtime: it has `model.onnx`, and no config."""
    return (folder / ONNX_FILE).is_file() and not (folder / CONFIG_FILE).exists()
