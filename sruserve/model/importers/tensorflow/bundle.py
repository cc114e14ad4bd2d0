"""Variables of a TensorFlow checkpoint (V2): NAME.index and NAME.data-00000-of-00001.

The index is a table of variables: each one's type, shape, place in the data files and checksum. The
messages are BundleHeaderProto and BundleEntryProto of tensor_bundle.proto.
"""

from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sruserve.model.errors import CheckpointError
from sruserve.model.files import memory_bytes, open_regular, read_regular
from sruserve.model.importers.tensorflow.crc32c import masked_crc32c
from sruserve.model.importers.tensorflow.encoding import Damaged, Field, fields, message, whole
from sruserve.model.importers.tensorflow.table import entries

_LARGEST_INDEX = 64 << 20  # bytes: more than 100,000 variables
_MAX_DIMENSIONS = 8
_MAX_SHARDS = 100_000
_SHOWN = 160  # characters at the end of a name, in a message
# Of `DataType`: float, double and half.
_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    19: np.dtype("<f2"),
}


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where a variable's numbers are. size: in bytes. sliced: only parts of it are stored."""

    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    sliced: bool


class Bundle:
    """The variables of a checkpoint; its numbers are read on demand.

    prefix: the path without `.index`. Raises `CheckpointError` for an index that cannot be read.
    """

    def __init__(self, prefix: Path) -> None:
        self._prefix = prefix
        path = prefix.with_name(f"{prefix.name}.index")
        try:
            table = entries(read_regular(path, _LARGEST_INDEX))
            self._shards = _header(table.pop(b"", b""))
            self._entries = {_text(name): _entry(value) for name, value in table.items()}
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
        except Damaged as error:
            raise CheckpointError(
                f"{path} is no index of a TensorFlow checkpoint, or is damaged: the file {error}; "
                "copy it again"
            ) from error

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all variables, by their names."""
        return {name: entry.shape for name, entry in self._entries.items()}

    def tensor(self, name: str) -> Tensor:
        """Read a variable of floats, as float32; raises `CheckpointError`."""
        entry, own = self._entries[name], name[-_SHOWN:]
        dtype = _DTYPES.get(entry.dtype)
        if dtype is None:
            raise CheckpointError(
                f"{own} holds numbers of type {entry.dtype}, not floats: save it as floats"
            )
        if entry.sliced:
            raise CheckpointError(
                f"{own} is stored in parts, as a partitioned variable: save it without a "
                "partitioner"
            )
        if entry.size != prod(entry.shape) * dtype.itemsize or entry.shard >= self._shards:
            raise CheckpointError(
                f"{own} does not have the size of its shape: copy the checkpoint again"
            )
        path = self._data_file(entry.shard)
        try:
            with open_regular(path, memory_bytes()) as file:
                if entry.offset + entry.size > file.seek(0, 2):
                    raise CheckpointError(f"{path} is too short for {own}: copy it again")
                file.seek(entry.offset)
                content = file.read(entry.size)
        except OSError as error:
            raise CheckpointError(
                f"cannot read {path}, which holds {own}: {error.strerror or error}"
            ) from error
        if masked_crc32c(content) != entry.checksum:
            raise CheckpointError(f"{path}: {own} has a wrong checksum: copy the file again")
        array = np.frombuffer(content, dtype).astype(np.float32).reshape(entry.shape)
        return torch.from_numpy(array)

    def _data_file(self, shard: int) -> Path:
        name = f"{self._prefix.name}.data-{shard:05}-of-{self._shards:05}"
        return self._prefix.with_name(name)


def _header(data: bytes) -> int:
    """Return the number of data files; the numbers must be little-endian."""
    own = dict(fields(data))
    if whole(own.get(2, 0)) != 0:
        raise Damaged("is of a big-endian machine")
    shards = whole(own.get(1, 0))
    if not 1 <= shards <= _MAX_SHARDS:
        raise Damaged("does not name its data files")
    return shards


def _entry(data: bytes) -> _Entry:
    own: dict[int, Field] = dict(fields(data))
    return _Entry(
        dtype=whole(own.get(1, 0)),
        shape=_shape(message(own.get(2, b""))),
        shard=whole(own.get(3, 0)),
        offset=whole(own.get(4, 0)),
        size=whole(own.get(5, 0)),
        checksum=whole(own.get(6, 0)),
        sliced=7 in own,
    )


def _shape(data: bytes) -> tuple[int, ...]:
    sizes = [dict(fields(message(value))) for number, value in fields(data) if number == 2]
    if len(sizes) > _MAX_DIMENSIONS:
        raise Damaged("has a variable of too many dimensions")
    return tuple(whole(size.get(1, 0)) for size in sizes)


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise Damaged("has a name that is no text") from error
