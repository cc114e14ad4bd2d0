"""How a graph goes through time: one step of each stream, or whole sequences."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sruserve.export.onnx.graph import INT, Body, Graph, Value

LOWEST = -3.4e38  # below all trained numbers


class Recurrence(NamedTuple):
    """A state around each step, (..., batch, n), and after the last one, (batch, n)."""

    before: Value
    after: Value
    end: Value


class Steps(Protocol):
    """The recurrences of a graph. Values of steps are (batch, n), or (time, batch, n)."""

    lengths: Value | None

    @abstractmethod
    def recur(
        self,
        body: Body,
        starts: Sequence[Value],
        inputs: Sequence[Value],
        backward_from: int | None = None,
        backward: bool = False,
    ) -> list[Recurrence]:
        """Run `body`, which maps the states and one step of the inputs to the new states.

        backward_from: the first channel that runs from the last step to the first. backward: all
            channels do.
        """

    @abstractmethod
    def previous(self, start: Value, x: Value) -> Recurrence:
        """Return the rows of `x` before and at each step; before the first, `start` (batch, n)."""

    @abstractmethod
    def with_time(self, x: Value) -> Value:
        """Return rows of steps as (time, batch, n)."""

    @abstractmethod
    def without_time(self, x: Value) -> Value:
        """Return rows (time, batch, n) as rows of steps."""

    @abstractmethod
    def counts(self) -> Value:
        """Return the number of steps of each sequence, (batch, 1), int64."""

    @abstractmethod
    def last(self, x: Value) -> Value:
        """Return each sequence's last row of `x`, (batch, n)."""

    @abstractmethod
    def total(self, x: Value) -> Value:
        """Return the sum of each sequence's rows, (batch, n)."""

    @abstractmethod
    def largest(self, x: Value) -> Value:
        """Return the largest number of each sequence's rows, (batch, n)."""


class OneStep(Steps):
    """One step of each stream: no control flow."""

    lengths = None

    def __init__(self, graph: Graph, rows: Value) -> None:
        self._graph, self._rows = graph, rows

    def recur(
        self,
        body: Body,
        starts: Sequence[Value],
        inputs: Sequence[Value],
        backward_from: int | None = None,
        backward: bool = False,
    ) -> list[Recurrence]:
        assert backward_from is None
        assert not backward
        new = body(self._graph.op, *starts, *inputs)
        return [Recurrence(a, b, b) for a, b in zip(starts, new, strict=True)]

    def previous(self, start: Value, x: Value) -> Recurrence:
        return Recurrence(start, x, x)

    def with_time(self, x: Value) -> Value:
        return self._graph.op.Unsqueeze(x, [0])

    def without_time(self, x: Value) -> Value:
        return self._graph.op.Squeeze(x, [0])

    def counts(self) -> Value:
        op = self._graph.op
        one_column = op.Slice(self._rows, [0], [1], [-1])
        return op.Add(op.Mul(op.Cast(one_column, to=INT), 0), 1)

    def last(self, x: Value) -> Value:
        return x

    def total(self, x: Value) -> Value:
        return x

    def largest(self, x: Value) -> Value:
        return x


class WholeSequences(Steps):
    """All steps of sequences, each as long as `lengths` (batch), int64, says.

    Rows after a sequence's last step are padding; nothing reads them.
    """

    def __init__(self, graph: Graph, lengths: Value) -> None:
        op, self._graph = graph.op, graph
        self.lengths: Value | None = lengths
        self._lengths = lengths
        batch = op.Range(0, op.Squeeze(op.Shape(lengths), [0]), 1)
        self._ends = op.Concat(op.Unsqueeze(lengths, [1]), op.Unsqueeze(batch, [1]), axis=1)

    def recur(
        self,
        body: Body,
        starts: Sequence[Value],
        inputs: Sequence[Value],
        backward_from: int | None = None,
        backward: bool = False,
    ) -> list[Recurrence]:
        turned = 0 if backward else backward_from
        in_order = [self._turn(x, turned) for x in inputs]
        recurrences = []
        for start, scanned in zip(starts, self._graph.scan(body, starts, in_order), strict=True):
            before, after, end = self._around(start, scanned)
            recurrences.append(
                Recurrence(self._turn(before, turned), self._turn(after, turned), end)
            )
        return recurrences

    def previous(self, start: Value, x: Value) -> Recurrence:
        return self._around(start, x)

    def with_time(self, x: Value) -> Value:
        return x

    def without_time(self, x: Value) -> Value:
        return x

    def counts(self) -> Value:
        return self._graph.op.Unsqueeze(self._lengths, [1])

    def last(self, x: Value) -> Value:
        op = self._graph.op
        return op.GatherND(x, op.Max(op.Sub(self._ends, [1, 0]), 0))

    def total(self, x: Value) -> Value:
        op = self._graph.op
        return op.ReduceSum(op.Where(self.inside(x), x, 0.0), [0], keepdims=0)

    def largest(self, x: Value) -> Value:
        op = self._graph.op
        return op.ReduceMax(op.Where(self.inside(x), x, LOWEST), [0], keepdims=0)

    def inside(self, x: Value) -> Value:
        """Return whether each row of `x` is a step of its sequence, (time, batch, 1), bool."""
        op = self._graph.op
        time = op.Range(0, op.Squeeze(op.Shape(x, start=0, end=1), [0]), 1)
        return op.Less(op.Unsqueeze(time, [1, 2]), self.counts())

    def _around(self, start: Value, x: Value) -> Recurrence:
        op = self._graph.op
        rows = op.Concat(op.Unsqueeze(start, [0]), x, axis=0)
        before = op.Slice(rows, [0], [-1], [0])
        return Recurrence(before, x, op.GatherND(rows, self._ends))

    def _turn(self, x: Value, first: int | None) -> Value:
        """Reverse the steps of the channels from `first` on, within each sequence."""
        if first is None:
            return x
        op = self._graph.op

        def reverse(part: Value) -> Value:
            return op.ReverseSequence(part, self._lengths, time_axis=0, batch_axis=1)

        if first == 0:
            return reverse(x)
        forward = op.Slice(x, [0], [first], [-1])
        backward = op.Slice(x, [first], [2**62], [-1])
        return op.Concat(forward, reverse(backward), axis=-1)
