"""Open a Keras file: the description of its layers, and their weights."""

import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from os import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

from sruserve.model.errors import CheckpointError
from sruserve.model.files import MAX_TEXT_BYTES, memory_bytes, open_regular
from sruserve.model.importers.keras.advice import AGAIN
from sruserve.model.importers.keras.hdf5 import Array, Hdf5
from sruserve.model.importers.shown import shown

_WEIGHTS = "model.weights.h5"
_COUNT = "count"  # of the numbers that a Normalization has seen, a whole number
_PIECE_BYTES = 1 << 20
# A `.keras` file of Keras before 3.0 has the second one.
_ROOTS = ("layers", "_layer_checkpoint_dependencies")


class Weights(Protocol):
    """The weights of all layers, and the file that they are in."""

    @property
    def file(self) -> Hdf5: ...

    def of(self, layer: str, key: str, part: str, names: Sequence[str]) -> dict[str, Array]:
        """Return a layer's arrays, by `names` in the order of Keras; `count` is left out.

        layer: the layer's name. key: its class and number, as a `.keras` file names it.
        part: the wrapped layer: "", "cell", "layer", "forward_layer/cell" or "backward_layer/cell".
        """
        ...


@dataclass(frozen=True)
class ArchiveWeights:
    """The weights of a `.keras` file: `layers/lstm_1/cell/vars/0`."""

    file: Hdf5

    def of(self, layer: str, key: str, part: str, names: Sequence[str]) -> dict[str, Array]:
        """See `Weights`."""
        root = next((root for root in _ROOTS if self.file.has(root)), _ROOTS[0])
        stored = self.file.text("name", root, key, "vars")
        if stored is not None and stored != layer:
            raise CheckpointError(
                f"layer {shown(layer)} has the weights of layer {shown(stored)}; {AGAIN}"
            )
        place = (root, key, *([part] if part else []), "vars")
        count = len(self.file.names(*place))
        if count != len(names):
            raise CheckpointError(
                f"layer {shown(layer)} has {count} arrays in {_WEIGHTS}, but {len(names)} are "
                f"expected: {', '.join(names)}; {AGAIN}"
            )
        return {
            name: self.file.array(*place, str(i)) for i, name in enumerate(names) if name != _COUNT
        }


@dataclass(frozen=True)
class LegacyWeights:
    """The weights of an HDF5 file, with the names of a layer's variables in an attribute."""

    file: Hdf5

    def of(self, layer: str, key: str, part: str, names: Sequence[str]) -> dict[str, Array]:
        """See `Weights`."""
        del key
        place = ("model_weights", layer)
        paths = [
            path
            for path in self.file.texts("weight_names", *place)
            if path.rpartition("/")[2].partition(":")[0] in names
        ]
        if part.startswith(("forward_layer", "backward_layer")):
            half = len(paths) // 2
            paths = paths[:half] if part.startswith("forward") else paths[half:]
        arrays = {path.rpartition("/")[2].partition(":")[0]: path for path in paths}
        if len(paths) != len(names) or set(arrays) != set(names):
            raise CheckpointError(
                f"layer {shown(layer)} has the arrays {shown(', '.join(paths))}, but these are "
                f"expected: {', '.join(names)}; {AGAIN}"
            )
        return {name: self.file.array(*place, arrays[name]) for name in names if name != _COUNT}


@contextmanager
def open_keras(path: Path) -> Iterator[tuple[dict[str, Any], Weights]]:
    """Open a file and yield the model's description and its weights.

    Raises `CheckpointError` for a file that is not one whole model. Nothing in it is executed.
    """
    try:
        with open_regular(path, memory_bytes()) as file:
            beginning = file.read(4)
            size = file.seek(0, SEEK_END)
            file.seek(0)
            if beginning == b"PK\x03\x04":
                yield _archive(file, size)
            else:
                yield _legacy(file, size)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error


def _archive(file: BinaryIO, size: int) -> tuple[dict[str, Any], Weights]:
    try:
        with ZipFile(file) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
            if unpacked > size:
                raise CheckpointError(
                    f"the archive holds {unpacked:,} bytes in a file of {size:,} bytes, so Keras "
                    "did not write it; save the model with Keras"
                )
            names = archive.namelist()
            for name in ("config.json", _WEIGHTS):
                if name not in names:
                    raise CheckpointError(f"the archive has no {name}; save the model with Keras")
            config = _unpacked(archive, "config.json", min(size, MAX_TEXT_BYTES))
            weights = _unpacked(archive, _WEIGHTS, size - len(config))
    except (
        BadZipFile,
        ValueError,
        EOFError,
        NotImplementedError,
        RuntimeError,
        zlib.error,
    ) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"the archive is damaged: {shown(error)}; save the model with Keras again"
        ) from error
    return _description(config), ArchiveWeights(Hdf5(BytesIO(weights), len(weights)))


def _unpacked(archive: ZipFile, name: str, max_bytes: int) -> bytes:
    """Return an entry's bytes; raises `CheckpointError` if they are more, whatever it says."""
    if archive.getinfo(name).compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise CheckpointError(
            f"{name} is compressed in a way of its own; save the model with Keras"
        )
    content = bytearray()
    with archive.open(name) as entry:
        while piece := entry.read(_PIECE_BYTES):
            content += piece
            if len(content) > max_bytes:
                raise CheckpointError(
                    f"{name} unpacks to more bytes than the file has, so Keras did not write it; "
                    "save the model with Keras"
                )
    return bytes(content)


def _legacy(file: BinaryIO, size: int) -> tuple[dict[str, Any], Weights]:
    hdf5 = Hdf5(file, size)
    config = hdf5.text("model_config")
    if config is None:
        raise CheckpointError(
            "the file has no model_config, so it holds weights without their wiring: load them in "
            "Keras and save the whole model with model.save('model.keras')"
        )
    return _description(config.encode("utf-8", "replace")), LegacyWeights(hdf5)


def _description(text: bytes) -> dict[str, Any]:
    if len(text) > MAX_TEXT_BYTES:
        raise CheckpointError(
            f"the model's description has {len(text):,} bytes; the limit is {MAX_TEXT_BYTES:,}: "
            "save a smaller model, or a state dict of the same network in PyTorch"
        )
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"the model's description is not JSON: {shown(error)}; {AGAIN}"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"the model's description is not a JSON object; {AGAIN}")
    return content
