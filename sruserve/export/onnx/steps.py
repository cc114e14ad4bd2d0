"""How a graph goes through time: one step of each stream, or whole sequences.

The value of a step is a row. A graph of one step has rows (batch, n), and one of sequences has rows
(time * batch, n), so that products and layers of rows are the same nodes in both.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from sruserve.export.onnx.graph import INT, Body, Graph, Value

LOWEST = -3.4e38  # below all trained numbers


class Recurrence(NamedTuple):
    """A state after each step, and after the last one, (batch, n)."""

    after: Value
    end: Value


class Steps(Protocol):
    """The recurrences of a graph.

    lengths: steps of each sequence, (batch), int64; None in a graph of one step.
    """

    lengths: Value | None

    @abstractmethod
    def recur(
        self,
        body: Body,
        starts: Sequence[Value],
        inputs: Sequence[Value],
        backward_from: int | None = None,
        backward: bool = False,
        further: int = 0,
    ) -> tuple[list[Recurrence], list[Value]]:
        """Run `body`, which maps the states and one step of the inputs to the new states.

        backward_from: the first channel that runs from the last step to the first. backward: all
            channels do.

        further: number of other values that `body` returns for each step.

        Returns the states, and those values.
        """

    @abstractmethod
    def previous(self, start: Value, x: Value) -> tuple[Value, Value]:
        """Return the row before each of `x`, `start` (batch, n) before the first, and the end."""

    @abstractmethod
    def with_time(self, x: Value) -> Value:
        """Return rows as (time, batch, n)."""

    @abstractmethod
    def rows(self, x: Value) -> Value:
        """Return (time, batch, n) as rows."""

    @abstractmethod
    def counts(self) -> Value:
        """Return the number of steps of each sequence, (batch, 1), int64."""

    @abstractmethod
    def last(self, x: Value) -> Value:
        """Return each sequence's last row, (batch, n)."""

    @abstractmethod
    def total(self, x: Value) -> Value:
        """Return the sum of each sequence's rows, (batch, n)."""

    @abstractmethod
    def largest(self, x: Value) -> Value:
        """Return the largest number of each sequence's rows, (batch, n)."""

    @abstractmethod
    def for_each(self, x: Value) -> Value:
        """Return for each row its sequence's row of x (batch, n)."""


class OneStep(Steps):
    """One step of each stream: no control flow.

    states: the state rows, which tell the number of streams.
    """

    lengths = None

    def __init__(self, graph: Graph, states: Value) -> None:
        self._graph, self._states = graph, states

    def recur(
        self,
        body: Body,
        starts: Sequence[Value],
        inputs: Sequence[Value],
        backward_from: int | None = None,
        backward: bool = False,
        further: int = 0,
    ) -> tuple[list[Recurrence], list[Value]]:
        assert backward_from is None
        assert not backward
        values = list(body(self._graph.op, *starts, *inputs))
        assert len(values) == len(starts) + further
        states = values[: len(starts)]
        return [Recurrence(state, state) for state in states], values[len(starts) :]

    def previous(self, start: Value, x: Value) -> tuple[Value, Value]:
        return start, x

    def with_time(self, x: Value) -> Value:
        return self._graph.op.Unsqueeze(x, [0])

    def rows(self, x: Value) -> Value:
        return self._graph.op.Squeeze(x, [0])

    def counts(self) -> Value:
        op = self._graph.op
        one_column = op.Slice(self._states, [0], [1], [-1])
        return op.Add(op.Mul(op.Cast(one_column, to=INT), 0), 1)

    def last(self, x: Value) -> Value:
        return x

    def total(self, x: Value) -> Value:
        return x

    def largest(self, x: Value) -> Value:
        return x

    def for_each(self, x: Value) -> Value:
        return x


class WholeSequences(Steps):
    """All steps of sequences, each as long as `lengths` (batch), int64, says.

    Rows after a sequence's last step are padding; nothing reads them.

    inputs: the graph's input, (batch, time, ...).
    """

    def __init__(self, graph: Graph, inputs: Value, lengths: Value) -> None:
        op, self._graph = graph.op, graph
        self.lengths: Value | None = lengths
        self._lengths = lengths
        self._empty = op.Unsqueeze(op.Equal(lengths, 0), [1])
        size, time = (op.Shape(inputs, start=axis, end=axis + 1) for axis in (0, 1))
        self._time = time
        self._shape = op.Concat(time, size, [-1], axis=0)
        batch = op.Range(0, op.Squeeze(size, [0]), 1)
        last = op.Max(op.Sub(lengths, 1), 0)
        self._ends = op.Concat(op.Unsqueeze(last, [1]), op.Unsqueeze(batch, [1]), axis=1)

    def recur(
        self,
        body: Body,
        starts: Sequence[Value],
        inputs: Sequence[Value],
        backward_from: int | None = None,
        backward: bool = False,
        further: int = 0,
    ) -> tuple[list[Recurrence], list[Value]]:
        turned = 0 if backward else backward_from
        in_order = [self._turn(self.with_time(x), turned) for x in inputs]
        scanned = self._graph.scan(body, starts, in_order, further)
        recurrences = [
            Recurrence(self.rows(self._turn(states, turned)), self._end(start, states))
            for start, states in zip(starts, scanned, strict=False)
        ]
        more = [self.rows(self._turn(values, turned)) for values in scanned[len(starts) :]]
        return recurrences, more

    def previous(self, start: Value, x: Value) -> tuple[Value, Value]:
        op, timed = self._graph.op, self.with_time(x)
        before = op.Concat(op.Unsqueeze(start, [0]), op.Slice(timed, [0], [-1], [0]), axis=0)
        return self.rows(before), self._end(start, timed)

    def with_time(self, x: Value) -> Value:
        return self._graph.op.Reshape(x, self._shape)

    def rows(self, x: Value) -> Value:
        return self._graph.op.Flatten(x, axis=2)

    def counts(self) -> Value:
        return self._graph.op.Unsqueeze(self._lengths, [1])

    def last(self, x: Value) -> Value:
        return self._graph.op.GatherND(self.with_time(x), self._ends)

    def total(self, x: Value) -> Value:
        op = self._graph.op
        return op.ReduceSum(op.Where(self.inside(), self.with_time(x), 0.0), [0], keepdims=0)

    def largest(self, x: Value) -> Value:
        op = self._graph.op
        return op.ReduceMax(op.Where(self.inside(), self.with_time(x), LOWEST), [0], keepdims=0)

    def for_each(self, x: Value) -> Value:
        op = self._graph.op
        shape = op.Where(op.Equal(self._shape, -1), 1, self._shape)
        return self.rows(op.Expand(op.Unsqueeze(x, [0]), shape))

    def inside(self) -> Value:
        """Return whether each row is a step of its sequence, (time, batch, 1), bool."""
        op = self._graph.op
        times = op.Range(0, op.Squeeze(self._time, [0]), 1)
        return op.Less(op.Unsqueeze(times, [1, 2]), self.counts())

    def _end(self, start: Value, x: Value) -> Value:
        """Return each sequence's last row of (time, batch, n); of an empty one, its start."""
        op = self._graph.op
        return op.Where(self._empty, start, op.GatherND(x, self._ends))

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
