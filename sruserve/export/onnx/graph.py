"""An ONNX graph under construction."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, cast

import onnx_ir as ir
from onnxscript import GraphBuilder
from torch import Tensor

from sruserve import __version__
from sruserve.export.onnx.integer import (
    ZERO_BYTE,
    RoundedRows,
    RoundedWeight,
    multiply,
    restore_rows,
    round_rows,
    rounded,
)
from sruserve.export.onnx.metadata import OPSET
from sruserve.export.plain import PlainLinear

IR_VERSION = 9  # of ONNX 1.15 (2023), as `OPSET` is: every runtime since then reads them

Value = ir.Value
Body = Callable[..., Sequence[Value]]


class Op(Protocol):
    """Adds nodes: `op.Add(a, b)` returns the output. Numbers become constants of the other type."""

    def __getattr__(self, name: str) -> Callable[..., Value]: ...


FLOAT, INT, INT32 = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.INT32


def split(op: Op, x: Value, sizes: Sequence[int]) -> Sequence[Value]:
    """Cut the last axis into parts of these sizes."""
    if len(sizes) == 1:
        return [x]
    return outputs(op.Split(x, list(sizes), axis=-1, _outputs=len(sizes)))


def outputs(of_node: object) -> Sequence[Value]:
    """Return the outputs of a node that has several."""
    return cast(Sequence[Value], of_node)


class Graph:
    """A graph: the names of its weights and nodes have the prefixes of `scope`.

    integer: weights that were restored from int8 are stored and multiplied as such.
    rescales: the highway of SRU has a trained scale, which may be 1.
    """

    rescales = False

    def __init__(self, name: str, integer: bool = False) -> None:
        graph = ir.Graph([], [], nodes=[], opset_imports={"": OPSET}, name=name)
        self._builder = GraphBuilder(graph)
        self._weights: dict[str, Value] = {}
        self._scopes: list[str] = []
        self._rounded: dict[Value, RoundedRows] = {}
        self._zero: Value | None = None
        self._scans = 0
        self.integer = integer
        self.op = cast(Op, self._builder.op)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix the names of all that is added inside."""
        self._builder.push_module(name)
        self._scopes.append(name)
        try:
            yield
        finally:
            self._scopes.pop()
            self._builder.pop_module()

    def input(self, name: str, dtype: ir.DataType, shape: Sequence[str | int]) -> Value:
        """Add an input; a dimension with a name is dynamic."""
        return self._builder.input(name, dtype, list(shape))

    def output(
        self, name: str, value: Value, shape: Sequence[str | int], dtype: ir.DataType = FLOAT
    ) -> None:
        """Add an output."""
        value = self.op.Identity(value)
        value.dtype, value.shape = dtype, ir.Shape(shape)
        self._builder.add_output(value, name)

    def weight(self, name: str, tensor: Tensor) -> Value:
        """Return a weight of the model, which is stored once for each name within its scope."""
        full = self._full(name)
        if full not in self._weights:
            stored = self._stored(full, tensor)
            self._weights[full] = self._builder.initializer(stored, full, qualify=False)
        return self._weights[full]

    def _stored(self, full: str, tensor: Tensor) -> ir.TensorProtocol:
        return ir.tensor(tensor.detach().contiguous().numpy(), name=full)

    def linear(self, x: Value, layer: PlainLinear, name: str) -> Value:
        """Compute x W^T + b for rows x (rows, in); returns (rows, out)."""
        op, numbers = self.op, self._integers(layer.weight, f"{name}.weight")
        if numbers is None:
            weight = self.weight(f"{name}.weight", layer.weight.T)
            if layer.bias is None:
                return op.MatMul(x, weight)
            return op.Gemm(x, weight, self.weight(f"{name}.bias", layer.bias))
        weight = self.weight(f"{name}.weight", numbers.numbers.T)
        product = self._product(x, weight, self.weight(f"{name}.scale", numbers.scale))
        return (
            product
            if layer.bias is None
            else op.Add(product, self.weight(f"{name}.bias", layer.bias))
        )

    def look_up(self, table: Tensor, ids: Value, name: str) -> Value:
        """Return the rows (..., width) of a table (n, width) at ids (...)."""
        numbers = self._integers(table, f"{name}.weight")
        if numbers is None:
            return self.op.Gather(self.weight(f"{name}.weight", table), ids)
        weight = self.weight(f"{name}.weight", numbers.numbers)
        return restore_rows(self.op, weight, self.weight(f"{name}.scale", numbers.scale), ids)

    def against(self, x: Value, table: Tensor, name: str) -> Value:
        """Compute x T^T for rows x (rows, width) and the table (n, width) of `look_up`."""
        op, numbers = self.op, self._integers(table, f"{name}.weight")
        stored = table if numbers is None else numbers.numbers
        columns = op.Transpose(self.weight(f"{name}.weight", stored), perm=[1, 0])
        if numbers is None:
            return op.MatMul(x, columns)
        return self._product(x, columns, self.weight(f"{name}.scale", numbers.scale))

    def columns(self, x: Value, begin: int, end: int) -> Value:
        """Return the columns of the last axis from `begin` to `end`."""
        return self.op.Slice(x, [begin], [end], [-1])

    def scan(
        self, body: Body, starts: Sequence[Value], inputs: Sequence[Value], further: int = 0
    ) -> list[Value]:
        """Run a recurrence over the first axis of its inputs.

        body: called with `op`, the states (batch, n) and one step of the inputs (batch, n); returns
            the new states, and `further` other values of the step.
        starts: the states before the first step. inputs: (time, batch, n) each.

        Returns the states after each step, and the further values, (time, batch, n) each.
        """
        states = len(starts)

        def step(op: Op, *values: Value) -> list[Value]:
            new = list(body(op, *values))
            # An output of the body must have one name only.
            return [*new[:states], *map(op.Identity, new[:states]), *new[states:]]

        def named(kind: str, count: int) -> list[Value]:
            return [ir.Value(name=f"{kind}_{i}", type=ir.TensorType(FLOAT)) for i in range(count)]

        self._scans += 1
        with self.scope(f"scan{self._scans}"):  # a name must not be one of the graph around it
            graph = self._builder.subgraph(
                step,
                named("state", states) + named("input", len(inputs)),
                named("new_state", states) + named("of_step", states + further),
                name="step",
            )
        count = 2 * states + further
        results = outputs(
            self.op.Scan(*starts, *inputs, body=graph, num_scan_inputs=len(inputs), _outputs=count)
        )
        return list(results[states:])

    def needs_bias(self, bias: Tensor, name: str) -> bool:
        """Whether a bias changes anything; it is stored under this name."""
        del name
        return bool(bias.any())

    def _integers(self, weight: Tensor, name: str) -> RoundedWeight | None:
        del name
        return rounded(weight) if self.integer else None

    def _full(self, name: str) -> str:
        return ".".join([*self._scopes, name])

    def _product(self, x: Value, weight: Value, scale: Value) -> Value:
        """Multiply rows x by the bytes of a weight (in, out) with scales (out); rounds x once."""
        if self._zero is None:  # for all products, so without the names of scopes
            zero = ir.tensor(ZERO_BYTE, name="zero")
            self._zero = self._builder.initializer(zero, "zero", qualify=False)
        if x not in self._rounded:
            self._rounded[x] = round_rows(self.op, x, self._zero)
        return multiply(self.op, self._rounded[x], self._zero, weight, scale)

    def model(self, metadata: Mapping[str, str]) -> ir.Model:
        """Return the finished model."""
        model = ir.Model(
            self._builder.graph,
            ir_version=IR_VERSION,
            producer_name="sruserve",
            producer_version=__version__,
        )
        model.metadata_props.update(metadata)
        return model
