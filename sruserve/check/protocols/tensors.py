"""KServe's tensors: the inputs that a model's metadata asks for, and values that fit."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Self

from sruserve.check.errors import Misuse, NoAnswer
from sruserve.check.protocols.fields import field, objects, texts_of

_FLOATS = ("FP32", "FP64")
_INTEGERS = ("INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64")
_FREE_SIZE = 4  # of a dimension of any size that is neither batch nor time
_MAX_ELEMENTS = 1 << 20  # numbers and characters of all inputs of a request
_MAX_DIMENSIONS = 64


@dataclass(frozen=True)
class Input:
    """An input tensor. dims: without the batch; the first is -1 where it is time."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    has_batch: bool

    @property
    def is_text(self) -> bool:
        return self.datatype == "BYTES"

    @property
    def has_time(self) -> bool:
        return not self.is_text and bool(self.dims) and self.dims[0] < 0

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of one step, or of the whole tensor where there is no time."""
        dims = self.dims[1:] if self.has_time else self.dims
        free = 1 if self.is_text else _FREE_SIZE
        return tuple(free if size < 0 else size for size in dims)

    def value(self, text: str, generator: random.Random) -> Any:
        """A text; or steps of numbers, as many as the text has words: rows of flat numbers."""
        if self.elements(text) > _MAX_ELEMENTS:
            raise Misuse(f"input {self.name} has over {_MAX_ELEMENTS} elements; it is too large")
        if self.is_text:
            return text
        steps = len(text.split()) if self.has_time else 1
        row = prod(self.row)
        return [[self._number(generator) for _ in range(row)] for _ in range(steps)]

    def elements(self, text: str) -> int:
        """The characters or numbers of the tensor for a text."""
        each = len(text) if self.is_text else len(text.split()) if self.has_time else 1
        return each * prod(self.row)

    def tensor(self, values: list[Any]) -> dict[str, Any]:
        """The tensor of one value, or of a batch of values."""
        if self.is_text:
            elements = [each for value in values for each in (value,) * prod(self.row)]
        else:
            elements = [number for value in values for row in value for number in row]
        batch = [len(values)] if self.has_batch else []
        time = [len(values[0])] if self.has_time else []
        return {
            "name": self.name,
            "shape": [*batch, *time, *self.row],
            "datatype": self.datatype,
            "data": elements,
        }

    def _number(self, generator: random.Random) -> float | int | bool:
        if self.datatype == "BOOL":
            return generator.random() < 0.5
        if self.datatype in _FLOATS:
            return generator.randint(-64, 64) / 64  # the same in every precision
        return generator.randint(1, 9)  # an id that most vocabularies have

    @classmethod
    def parse(cls, entry: Mapping[str, Any], has_batch: bool) -> Self:
        """Read an entry of a model's metadata."""
        name, datatype = field(entry, "name", str), field(entry, "datatype", str)
        if datatype not in (*_FLOATS, *_INTEGERS, "BOOL", "BYTES"):
            raise Misuse(
                f"input {name} is {datatype}, which JSON cannot carry; models with FP32, FP64, "
                "integers, BOOL or BYTES can be examined"
            )
        sizes = field(entry, "shape", list)
        try:
            shape = tuple(int(size) for size in sizes[: _MAX_DIMENSIONS + 1])
        except (TypeError, ValueError, OverflowError):
            raise NoAnswer(f"the metadata of input {name} has an invalid shape") from None
        if len(shape) > _MAX_DIMENSIONS:
            raise NoAnswer(f"input {name} has {len(sizes)} dimensions, more than {_MAX_DIMENSIONS}")
        return cls(name, datatype, shape[1:] if has_batch else shape, has_batch)


def values_of(inputs: Sequence[Input], text: str, generator: random.Random) -> dict[str, Any]:
    """A value of each input by name; raises `Misuse` if a request with all is too large."""
    if sum(each.elements(text) for each in inputs) > _MAX_ELEMENTS:
        raise Misuse(f"the model's {len(inputs)} inputs have over {_MAX_ELEMENTS} elements")
    return {each.name: each.value(text, generator) for each in inputs}


def model_inputs(metadata: Any, config: Mapping[str, Any]) -> tuple[Input, ...]:
    """All required inputs of a model. config: Triton's, or nothing where there is none."""
    entries = objects(metadata, "inputs")
    described = objects({"input": [], **config}, "input")
    optional = texts_of((entry for entry in described if entry.get("optional")), "name")
    batches = config.get("max_batch_size")
    inputs = []
    for entry in entries:
        shape = field(entry, "shape", list)
        if isinstance(batches, int):
            has_batch = batches > 0
        else:  # a server without configurations; a lone -1 may be anything but a batch
            has_batch = len(shape) > 1 and shape[0] in (-1, "-1")
        if field(entry, "name", str) not in optional:
            inputs.append(Input.parse(entry, has_batch))
    if not inputs:
        raise Misuse("the model's metadata lists no inputs that a request needs")
    return tuple(inputs)
