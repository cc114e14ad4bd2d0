"""Recognise files that describe a whole network, and files of other programs."""

import re
from pathlib import Path

from sruserve.model.errors import CheckpointError
from sruserve.model.files import open_regular
from sruserve.model.importers.formats import FILE_FORMATS

_HDF5 = b"\x89HDF\r\n\x1a\n"
_SUFFIXES = {".keras": "keras", ".h5": "keras", ".hdf5": "keras", ".onnx": "onnx"}
_TENSORFLOW = re.compile(r".+\.(index|meta|data-[0-9]{5}-of-[0-9]{5})|checkpoint")


def file_format(path: Path, name: str) -> str | None:
    """Return the format in `FILE_FORMATS` of a file; None for a state dict.

    name: the value of `--format`.

    Raises `CheckpointError` for a SavedModel of TensorFlow.
    """
    if name != "auto":
        return name if name in FILE_FORMATS else None
    if _is_file(path / "saved_model.pb"):
        raise CheckpointError(
            f"{path} is a SavedModel of TensorFlow, which cannot be read: load it in TensorFlow; "
            "save a Keras model with model.save('model.keras') and import that; for any other "
            "network, save a state dict of the same network in PyTorch"
        )
    if _is_tensorflow_checkpoint(path):
        return "lrn-tf"  # the only networks of which such checkpoints are read
    if suffix := _SUFFIXES.get(path.suffix.lower()):
        return suffix
    try:
        with open_regular(path, 1 << 62) as file:
            return "keras" if file.read(len(_HDF5)) == _HDF5 else None
    except OSError:  # the reader of state dicts has the better message
        return None


def _is_tensorflow_checkpoint(path: Path) -> bool:
    """Whether this is a file of a checkpoint, the beginning of its files' names, or its folder."""
    if _TENSORFLOW.fullmatch(path.name):
        return True
    beginning = path.name and not _is_file(path) and _is_file(path.with_name(f"{path.name}.index"))
    return bool(beginning) or _is_file(path / "checkpoint")


def _is_file(path: Path) -> bool:
    """Whether there is such a file; one that cannot be seen is none."""
    try:
        return path.exists()
    except OSError:
        return False
