"""Read an ONNX file: its graph, and the numbers of its constants."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sruserve.model.errors import CheckpointError
from sruserve.model.files import memory_bytes, open_regular
from sruserve.model.importers.options import shown
from sruserve.model.importers.wiring.steps import Array

_INSTALL = "ONNX files need the package onnx: pip install 'sruserve[onnx]'"
_AGAIN = "copy the file again, or export the network again"
_MAX_DIMENSIONS = 8
# Data types of `TensorProto` that networks of these nodes use.
_DTYPES = {
    1: np.float32, 2: np.uint8, 3: np.int8, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16,
    11: np.float64,
}  # fmt: skip


def read_graph(path: Path) -> Any:
    """Return the file's `ModelProto`; raises `CheckpointError`. Reads no other file."""
    try:
        import onnx
    except ImportError as error:
        raise CheckpointError(_INSTALL) from error
    try:
        with open_regular(path, memory_bytes()) as file:
            content = file.read()
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    try:
        model = onnx.ModelProto.FromString(content)
    except Exception as error:  # protobuf has a type of its own for each implementation
        raise CheckpointError(f"{path} is not an ONNX model: {shown(error)}; {_AGAIN}") from error
    if not model.graph.node:
        raise CheckpointError(f"{path} is not an ONNX model: it has no nodes; {_AGAIN}")
    return model


def array_of(tensor: Any, folder: Path) -> Array:
    """Return the numbers of a `TensorProto`; raises `CheckpointError`.

    folder: the folder of the model, where large tensors may have files of their own.
    """
    from onnx import numpy_helper

    name = shown(tensor.name or "a constant")
    dtype = _DTYPES.get(tensor.data_type)
    if dtype is None or len(tensor.dims) > _MAX_DIMENSIONS:
        raise CheckpointError(
            f"{name} has the data type {tensor.data_type} and {len(tensor.dims)} dimensions; "
            f"served are floats, integers and booleans of at most {_MAX_DIMENSIONS}: export the "
            "network in float32"
        )
    if tensor.data_location == 1:
        return _external(tensor, folder, name, np.dtype(dtype))
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except Exception as error:  # numbers that do not fit the shape
        raise CheckpointError(f"{name} cannot be read: {shown(error)}; {_AGAIN}") from error


def _external(tensor: Any, folder: Path, name: str, dtype: Any) -> Array:
    """Return numbers that are in another file, beside the model."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if location != Path(location).name or location in ("", ".", ".."):
        raise CheckpointError(
            f"{name} is in {shown(location)!r}, but only files beside the model are read: save the "
            "model again with all data in its own folder"
        )
    count = _count(tensor.dims)
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", -1))
    except ValueError as error:
        raise CheckpointError(f"{name} has no valid offset and length; {_AGAIN}") from error
    size = count * dtype.itemsize
    path = folder / location
    try:
        if path.is_symlink():
            raise CheckpointError(
                f"{path} is a link; only files beside the model are read: copy the file there"
            )
        with open_regular(path, memory_bytes()) as file:
            available = file.seek(0, 2) - offset
            if offset < 0 or length not in (-1, size) or size > available:
                raise CheckpointError(
                    f"{path} does not hold the {size:,} bytes of {name}: copy the file again, or "
                    "export the network again"
                )
            file.seek(offset)
            content = file.read(size)
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path}, which holds {name}: {error.strerror or error}; copy the file "
            "there"
        ) from error
    return np.frombuffer(content, dtype.newbyteorder("<")).reshape(tuple(tensor.dims))


def _count(dims: Sequence[int]) -> int:
    count = 1
    for size in dims:
        count *= max(0, size)
    return count
