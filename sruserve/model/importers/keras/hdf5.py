"""Arrays and texts of an HDF5 file that another party may have written."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import takewhile
from math import prod
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sruserve.model.errors import CheckpointError
from sruserve.model.files import MAX_TEXT_BYTES
from sruserve.model.importers.keras.advice import AGAIN
from sruserve.model.importers.shown import shown

Array = NDArray[Any]

_INSTALL = "Keras files need h5py: pip install 'sruserve[keras]'"
# What a damaged file raises in h5py.
_DAMAGES = (
    OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError,
    AttributeError,
)  # fmt: skip
_MAX_NAMES = 100_000  # in a list of names
_MAX_REFERENCES = 64  # in a list of texts of variable length, which may all be one text of the file
_TEXT_READS = 4  # of all texts of a file; two halves of a layer read its names
_SMALL_BYTES = 1 << 20  # which any texts may have


class Hdf5:
    """The groups and arrays of one file.

    Follows no link to another place or file, and reads no more bytes than the file has. Raises
    `CheckpointError` for anything else.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        """file: seekable, of `size` bytes."""
        try:
            import h5py
        except ImportError as error:
            raise CheckpointError(_INSTALL) from error
        self._h5py = h5py
        self._size = size
        self._refill()
        try:
            self._file = h5py.File(file, "r")
        except _DAMAGES as error:
            raise CheckpointError(f"the file is not valid HDF5: {shown(error)}; {AGAIN}") from error

    def _refill(self) -> None:
        self._bytes_left = self._size
        self._text_bytes_left = _TEXT_READS * self._size + _SMALL_BYTES

    def read_all(self) -> None:
        """Read each group, attribute and array that can be read, as any reader of the file would.

        That takes any time if the file is damaged.
        """
        paths: list[tuple[str, ...]] = [()]
        seen: set[int] = set()
        while paths:
            path = paths.pop()
            self._refill()
            with suppress(CheckpointError):
                owner = self._find(path)
                place = self._read("an object", lambda o=owner: self._h5py.h5o.get_info(o.id).addr)
                if place in seen:  # links may go in a circle
                    continue
                seen.add(place)
                for name in self._read("attributes", lambda o=owner: [*o.attrs]):
                    with suppress(CheckpointError):
                        self._attribute(name, path)
                paths += [(*path, name) for name in self.names(*path)]
                if isinstance(owner, self._h5py.Dataset):
                    self.array(*path)

    def has(self, *path: str) -> bool:
        """Whether there is a group or an array at `path`."""
        return self._find(path) is not None

    def names(self, *path: str) -> list[str]:
        """Return the names in a group; none if there is no such group."""
        group = self._find(path)
        if not isinstance(group, self._h5py.Group):
            return []
        return self._read("a group", lambda: [str(name) for name in group])  # type: ignore[no-any-return]

    def array(self, *path: str) -> Array:
        """Return an array of floats with at most 2 dimensions."""
        name, data = shown("/".join(path)), self._find(path)
        if not isinstance(data, self._h5py.Dataset):
            raise CheckpointError(f"{name} is missing; {AGAIN}")
        array: Array = self._read(name, lambda: self._checked(name, data)[()])
        return array

    def _checked(self, name: str, data: Any) -> Any:
        """Return an array that may be read; its header alone can fail to be."""
        if data.dtype.kind != "f" or data.shape is None or data.ndim > 2:
            raise CheckpointError(
                f"{name} holds {data.dtype} of shape {shown(data.shape)}; weights are floats with "
                f"at most 2 dimensions; {AGAIN}"
            )
        if data.is_virtual or data.external:
            raise CheckpointError(f"{name} refers to data in other files; {AGAIN}")
        self._bytes_left -= int(data.nbytes)
        if self._bytes_left < 0:
            raise CheckpointError(
                f"{name} with the arrays before it has more bytes than the file: compressed or "
                "empty arrays are refused; save the model with Keras"
            )
        return data

    def text(self, name: str, *path: str) -> str | None:
        """Return an attribute that is one text; None without it."""
        value = self._attribute(name, path)
        if value is None:
            return None
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if not isinstance(value, str) or len(value) > MAX_TEXT_BYTES:
            raise CheckpointError(f"attribute {shown(name)} is not a text; {AGAIN}")
        return value

    def texts(self, name: str, *path: str) -> list[str]:
        """Return an attribute that lists texts; Keras splits a long one into `name0`, `name1`, …"""
        parts = [self._attribute(name, path)]
        if parts[0] is None:
            numbered = (self._attribute(f"{name}{i}", path) for i in range(_MAX_NAMES))
            parts = list(takewhile(lambda part: part is not None, numbered))
        values = [value for part in parts for value in np.asarray(part).reshape(-1)]
        return [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values]

    def _attribute(self, name: str, path: Sequence[str]) -> Any:
        owner = self._find(path)
        if owner is None or not self._read(name, lambda: name in owner.attrs):
            return None
        self._read(name, lambda: self._check_attribute(name, owner.attrs.get_id(name)))
        value = self._read(name, lambda: owner.attrs[name])
        self._text_bytes_left -= _text_bytes(value)
        if self._text_bytes_left < 0:
            raise CheckpointError(
                f"attribute {shown(name)} with the texts before it has more bytes than the file; "
                "save the model with Keras"
            )
        return value

    def _check_attribute(self, name: str, attribute: Any) -> None:
        """Raise `CheckpointError` for an attribute that would take more memory than the limit."""
        count, dtype = prod(attribute.shape or ()), attribute.dtype
        if count > _MAX_NAMES or count * dtype.itemsize > MAX_TEXT_BYTES:
            raise CheckpointError(
                f"attribute {shown(name)} has {count:,} elements of {dtype.itemsize} bytes; the "
                f"limits are {_MAX_NAMES:,} and {MAX_TEXT_BYTES:,} bytes together: {AGAIN}"
            )
        if dtype.hasobject:  # its elements are references, whose bytes no header states
            if self._h5py.check_string_dtype(dtype) is None:
                raise CheckpointError(f"attribute {shown(name)} is not a text; {AGAIN}")
            if count > _MAX_REFERENCES:
                raise CheckpointError(
                    f"attribute {shown(name)} lists {count:,} texts of variable length; the limit "
                    f"is {_MAX_REFERENCES}: save the model with Keras"
                )

    def _find(self, path: Sequence[str]) -> Any:
        """Return the group or array at `path`; None without it."""
        owner: Any = self._file
        for part in "/".join(path).split("/") if path else ():
            if not isinstance(owner, self._h5py.Group):
                return None
            group = owner
            link = self._read(part, lambda group=group, part=part: group.get(part, getlink=True))
            if link is None:
                return None
            if not isinstance(link, self._h5py.HardLink):
                raise CheckpointError(
                    f"{shown(part)} is a link to another place, which is refused; {AGAIN}"
                )
            owner = self._read(part, lambda group=group, part=part: group[part])
        return owner

    def _read(self, name: str, read: Any) -> Any:
        """Return what `read` returns; a damaged file can raise many errors in it."""
        try:
            return read()
        except CheckpointError:
            raise
        except _DAMAGES as error:
            raise CheckpointError(
                f"{shown(name)} cannot be read: {shown(error)}; {AGAIN}"
            ) from error


def _text_bytes(value: Any) -> int:
    """Return the bytes of a text, or of a list of texts, about."""
    if isinstance(value, str | bytes):
        return len(value)
    parts = np.asarray(value)
    if parts.dtype.hasobject:
        return sum(len(part) for part in parts.reshape(-1))
    return parts.nbytes
