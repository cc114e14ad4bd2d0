"""Two recordings of one module, at two sizes, as one graph whose sizes are symbols."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from sruserve.tracing.errors import TracingError
from sruserve.tracing.recorder import Operation, Recording, Ref
from sruserve.tracing.source import Place

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Varying:
    """A number that differs between the runs, because it comes from the inputs' sizes."""

    first: float
    second: float


Number = int | Varying
Shape = tuple[Number, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of sequences and of steps in both runs."""

    batch: Pair
    steps: Pair

    def name(self, number: object) -> object:
        """Return "B" for the batch, "T" for the steps, "BT" for their product, else the number.

        "T-1" is the last step, also where it is counted from the end.
        """
        if not isinstance(number, Varying):
            return number
        pair = (number.first, number.second)
        products = (self.batch[0] * self.steps[0], self.batch[1] * self.steps[1])
        names: dict[object, str] = {self.batch: "B", self.steps: "T", products: "BT"}
        names[self.steps[0] - 1, self.steps[1] - 1] = "T-1"
        return names.get(pair, number)


@dataclass(frozen=True)
class Graph:
    """The operations of both runs, with `Varying` numbers in their arguments.

    tensors: the values of each number in both runs. shapes: their shapes.
    inputs: numbers of the module's inputs. result: what the module returned, with a `Ref` in place
    of each tensor.
    """

    operations: Sequence[Operation]
    tensors: Sequence[tuple[Tensor, Tensor]]
    inputs: Sequence[int]
    result: Any
    shapes: Sequence[Shape] = field(init=False)

    def __post_init__(self) -> None:
        shapes = [_merged(tuple(a.shape), tuple(b.shape), None) for a, b in self.tensors]
        object.__setattr__(self, "shapes", shapes)

    def recurrent(self) -> list[Operation]:
        """Return the calls of recurrent modules, in order."""
        return [operation for operation in self.operations if operation.module is not None]


def merge(
    first: Recording, second: Recording, results: tuple[Any, Any], inputs: Sequence[int]
) -> Graph:
    """Join the recordings of two runs; raise `TracingError` where they are not the same code."""
    operations = []
    for a, b in zip(first.operations, second.operations, strict=False):
        if (a.name, a.module, len(a.outputs)) != (b.name, b.module, len(b.outputs)):
            raise _depends(b.place, a.place)
        args = _merged(a.args, b.args, a.place)
        kwargs = _merged(a.kwargs, b.kwargs, a.place)
        operations.append(replace(a, args=args, kwargs=kwargs))
    if len(first.operations) != len(second.operations):
        longer = max((first.operations, second.operations), key=len)
        raise _depends(longer[len(operations)].place, None)
    last = operations[-1].place if operations else None
    result = _merged(results[0], results[1], last)
    tensors = list(zip(first.tensors, second.tensors, strict=True))
    return Graph(operations, tensors, inputs, result)


def _depends(place: Place | None, other: Place | None) -> TracingError:
    also = f", and {other}" if other is not None and other != place else ""
    return TracingError(
        "the module computes something else for inputs of another length or other numbers, such as "
        f"a loop over the steps{also}",
        place,
    )


def _merged(a: Any, b: Any, place: Place | None) -> Any:
    """Return an argument of both runs, with `Varying` where its numbers differ."""
    if isinstance(a, slice) and isinstance(b, slice):
        parts = zip((a.start, a.stop, a.step), (b.start, b.stop, b.step), strict=True)
        return slice(*(_merged(x, y, place) for x, y in parts))
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple(_merged(x, y, place) for x, y in zip(a, b, strict=True))
    if isinstance(a, Mapping) and isinstance(b, Mapping) and a.keys() == b.keys():
        return {key: _merged(a[key], b[key], place) for key in a}
    if isinstance(a, Ref) or isinstance(b, Ref):
        if a != b:
            raise _depends(place, None)
        return a
    if a is b:
        return a
    numbers = (int, float)
    if isinstance(a, numbers) and isinstance(b, numbers) and not isinstance(a, bool):
        return a if a == b else Varying(a, b)
    if isinstance(a, nn.Module | torch.device | torch.dtype | str | bool) and a != b:
        raise _depends(place, None)
    return a
