"""Bound the bytes of a graph's numbers by those that its files hold."""

from pathlib import Path
from typing import Any

from sruserve.model.importers.onnx.values import Const, Refused, Value
from sruserve.model.importers.wiring.steps import Array

_FACTOR = 8  # weights are read, may be cast to a wider type, and tied ones are used twice
_SMALL_BYTES = 64 << 20  # which any numbers may have


class Budget:
    """The bytes that may still be read or computed.

    A constant may be one number that is spread to any shape, several nodes may read one constant,
    and several constants one part of a file.
    """

    def __init__(self, held_bytes: int) -> None:
        self._left = _FACTOR * held_bytes + _SMALL_BYTES
        self._files: set[str] = set()

    def take_constant(self, tensor: Any, array: Array, folder: Path) -> None:
        """Count a constant of a file beside the model; one in the model counts where it is used."""
        if tensor.data_location != 1:
            return
        location = next(entry.value for entry in tensor.external_data if entry.key == "location")
        if location not in self._files:
            self._files.add(location)
            self._left += _FACTOR * (folder / location).stat().st_size
        self._take(array.nbytes)

    def take_result(self, result: Const, inputs: list[Value | None]) -> None:
        """Count a computed constant; a view of others takes no memory."""
        array = result.array
        if array.base is None and all(array is not v.array for v in inputs if isinstance(v, Const)):
            self._take(array.nbytes)

    def take_weights(self, inputs: list[Value | None]) -> None:
        """Count the constants that a layer reads, with all of their numbers."""
        self._take(sum(value.array.nbytes for value in inputs if isinstance(value, Const)))

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise Refused(
                "reads far more numbers than the file holds",
                "store each weight with its own numbers, and save the model again",
            )
