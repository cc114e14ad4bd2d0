"""Give every tensor of a graph its meaning, from the inputs to the result."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

# Each of these registers its handlers.
from sruserve.tracing import (  # noqa: F401
    activations,
    arithmetic,
    axes,
    indexing,
    products,
    recurrences,
    reductions,
)
from sruserve.tracing.errors import TracingError, Unserved
from sruserve.tracing.graph import Graph, Pair, Sizes, Varying
from sruserve.tracing.recorder import Operation, Packed, Ref
from sruserve.tracing.stages import Stage
from sruserve.tracing.table import HANDLERS, Site
from sruserve.tracing.values import Constant, Features, Ids, Rows, States, Unknown, Value

# A function that only reads a tensor's own properties, or makes a new one of the same shape.
_LIKE = {"zeros_like", "ones_like", "empty_like", "full_like", "new_zeros", "new_ones", "new_full"}


class Interpreter:
    """The meanings of a graph's tensors.

    stages: the recurrent modules. first, second: the lengths of the input's two axes in both runs.
    """

    def __init__(
        self, graph: Graph, stages: Mapping[nn.Module, Stage], first: Pair, second: Pair
    ) -> None:
        self._graph, self._stages = graph, stages
        self.batch_first = self._batch_first(first, second)
        self._sizes = Sizes(first, second) if self.batch_first else Sizes(second, first)
        self._values: dict[int, Value] = {}
        order = ("B", "T") if self.batch_first else ("T", "B")
        (number,) = graph.inputs
        shape = graph.shapes[number]
        if len(shape) == 3:
            (_, _, width) = shape
            assert isinstance(width, int)
            self._values[number] = Rows(Features(width), (*order, "F"))
        elif graph.tensors[number][0].is_floating_point():
            self._values[number] = Rows(Features(1), order)
        else:
            self._values[number] = Ids(order)

    def run(self) -> None:
        """Interpret every operation; raise `TracingError` where Python reads its numbers."""
        for operation in self._graph.operations:
            results = self._results(operation)
            self._values |= dict(zip(operation.outputs, results, strict=True))

    def value(self, ref: Ref) -> Value:
        """Return the meaning of a tensor."""
        value = self._values.get(ref.number)
        if value is None:  # from outside: a parameter, or what another library computed
            value = self._values[ref.number] = self._outside(ref.number)
        return value

    def _outside(self, number: int) -> Value:
        a, b = self._graph.tensors[number]
        if a.shape == b.shape and (a == b).all():
            return Constant(a, b)
        return Unknown("uses a tensor that code outside torch's own functions has computed")

    def _results(self, operation: Operation) -> Sequence[Value]:
        args, kwargs = self._decoded(operation.args), self._decoded(operation.kwargs)
        inputs = _values((args, kwargs))
        unknown = next((value for value in inputs if isinstance(value, Unknown)), None)
        constant = all(isinstance(value, Constant) for value in inputs)
        if operation.name in _LIKE:
            constant, unknown = True, None
        if operation.reads and not constant:
            raise TracingError(
                f"{operation.title} passes numbers of the network to Python, so what it does may "
                "depend on them",
                operation.place,
            )
        if unknown is not None:
            if unknown.place is None:
                unknown = Unknown(f"{operation.title} {unknown.reason}", operation.place)
            return [unknown] * len(operation.outputs)
        if constant and operation.module is None:
            return [self._constant(number) for number in operation.outputs]
        try:
            return self._served(operation, args, kwargs)
        except Unserved as reason:
            message = f"{operation.title} {reason}"
        except TypeError:  # arguments that the handler does not have
            message = f"{operation.title} has arguments that cannot be served"
        return [Unknown(message, operation.place)] * len(operation.outputs)

    def _served(self, operation: Operation, args: Any, kwargs: Any) -> Sequence[Value]:
        shapes = [self._graph.shapes[number] for number in operation.outputs]
        named = [tuple(map(self._sizes.name, shape)) for shape in shapes]
        site = Site(operation, self._sizes, named)
        if operation.module is not None:
            results = recurrences.call(self._stages[operation.module], args, dict(kwargs))
            others = len(operation.outputs) - len(results)
            return [*results, *[Unknown("reads an inner result", operation.place)] * others]
        if (handler := HANDLERS.get(operation.name)) is None:
            raise Unserved("cannot be served")
        made = handler(site, *args, **kwargs)
        return list(made) if isinstance(made, list | tuple) else [made]  # type: ignore[list-item]

    def _constant(self, number: int) -> Constant:
        return Constant(*self._graph.tensors[number])

    def _decoded(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return self.value(value)
        if isinstance(value, slice):
            return slice(*map(self._decoded, (value.start, value.stop, value.step)))
        if isinstance(value, tuple):
            return tuple(map(self._decoded, value))
        if isinstance(value, Mapping):
            return {key: self._decoded(entry) for key, entry in value.items()}
        return value

    def _batch_first(self, first: Pair, second: Pair) -> bool:
        """Whether the input begins with the batch, as the first recurrent module shows."""
        for operation in self._graph.recurrent():
            assert operation.module is not None
            stage = self._stages[operation.module]
            x = operation.args[0] if operation.args else operation.kwargs.get("input")
            if isinstance(x, Packed):
                raise TracingError(f"{operation.title} {_PACKED}", operation.place)
            if not isinstance(x, Ref) or len(shape := self._graph.shapes[x.number]) != 3:
                raise TracingError(
                    f"{operation.title} reads a tensor that is not of three dimensions",
                    operation.place,
                )
            steps = shape[1 if stage.batch_first else 0]
            if steps == Varying(*second):
                return True
            if steps == Varying(*first):
                return False
            raise TracingError(
                f"{operation.title} reads {_counted(steps)}, not the steps of the input",
                operation.place,
            )
        raise TracingError(
            "the module calls no recurrent module that can be served: nn.LSTM, nn.GRU, nn.RNN, "
            "sru.SRU, sru.SRUpp, QRNN or the LRN repository's RNN; of a convolutional network, "
            "import the state dict with `sruserve import`"
        )


_PACKED = (
    "reads a packed sequence, for padding, which the server does not have: call the module with "
    "the plain tensor where no lengths are passed"
)


def _counted(steps: object) -> str:
    return f"{steps} steps" if isinstance(steps, int) else "another number of steps"


def _values(value: Any) -> list[Value]:
    if isinstance(value, Value):
        return [value]
    if isinstance(value, slice):
        value = (value.start, value.stop, value.step)
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, tuple):
        return [item for entry in value for item in _values(entry)]
    return []


def is_state(value: Value) -> bool:
    """Whether a result beside the outputs is the recurrent state, which people return, too."""
    return isinstance(value, States | Constant)
