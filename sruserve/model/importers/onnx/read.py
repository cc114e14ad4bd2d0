"""Networks that are ONNX graphs, such as those that `torch.onnx.export` writes."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.format import Imported, Options
from sruserve.model.importers.onnx.axes import AXIS_NODES, axis_node
from sruserve.model.importers.onnx.budget import Budget
from sruserve.model.importers.onnx.constants import fold
from sruserve.model.importers.onnx.file import array_of, read_graph
from sruserve.model.importers.onnx.recurrent import OtherAxis, recurrent_node
from sruserve.model.importers.onnx.rows import ROW_NODES, row_node
from sruserve.model.importers.onnx.values import (
    ANY_LENGTH,
    INVALID,
    Axis,
    Const,
    Flow,
    Label,
    Refused,
    States,
    Value,
    axis_of,
    rows_of,
    sizes,
)
from sruserve.model.importers.options import known, shown
from sruserve.model.importers.wiring.assemble import assemble
from sruserve.model.importers.wiring.steps import Pool, Step, same
from sruserve.model.names import Task

_MAX_NODES = 100_000
# What stands for a number of steps that the file leaves open. The network must be the same with
# both: a third step is no last step. An open number of inputs is 1, as every stream is by itself.
_STEPS = (131, 3)
_SOFTMAX_OF_LAST_AXIS = 13  # opset; before, the default was axis 1 with all axes after it
_RECURRENT = ("LSTM", "GRU", "RNN")
_SAME = ("Identity", "Cast", "Dropout")
_IDS = (6, 7)  # int32, int64


def read(path: Path, options: Options | None, task: Task) -> Imported:
    """See `FileFormat`. `output` names the output to serve, of a graph with several."""
    arguments = known(options, ("output",))
    model = read_graph(path)
    graph = _Graph(model, path.parent)
    name = graph.output(arguments.get("output"))
    try:
        flows = [graph.run(name, steps, batch_first=True) for steps in _STEPS]
    except OtherAxis:
        try:
            flows = [graph.run(name, steps, batch_first=False) for steps in _STEPS]
        except OtherAxis:
            raise CheckpointError(
                "the recurrent layers run over different axes: export them with one batch_first"
            ) from None
    steps, others = (_answers(flow, name) for flow in flows)
    if not same(steps, others):
        raise CheckpointError(
            f"the network computes with the number of its steps or inputs: {ANY_LENGTH}"
        )
    features = None if graph.reads_ids else graph.features
    imported = assemble(steps, task, features)
    if graph.fixed_steps is None:
        return imported
    return replace(imported, assumed=(f"any number of steps, not {graph.fixed_steps:,} alone",))


def _answers(flow: Flow, name: str) -> tuple[Step, ...]:
    """Check that a value is one row for the input, or one for every step."""
    pooled = any(isinstance(step, Pool) for step in flow.steps)
    labels = [label for axis in flow.axes for label, _ in axis]
    if labels.count("time") != (0 if pooled else 1) or "direction" in labels:
        raise CheckpointError(
            f"output {shown(name)} is no row of each input or of each step: choose another with "
            '"output" in --options'
        )
    return flow.steps


def _trains(inputs: list[Value | None]) -> bool:
    """Whether a Dropout, with its ratio and mode, drops numbers."""
    mode = inputs[2] if len(inputs) > 2 else None
    return mode is not None and not (isinstance(mode, Const) and not mode.array.any())


def _check_last_axis(inputs: list[Value | None], axis: int) -> None:
    """Raise `Refused` for an early softmax over several axes together."""
    x = inputs[0] if inputs else None
    if isinstance(x, (Flow, States)) and axis % len(x.axes) != len(x.axes) - 1:
        raise Refused(
            f"is over all axes from {axis} on, as in each opset before {_SOFTMAX_OF_LAST_AXIS}",
            f"export the network with opset {_SOFTMAX_OF_LAST_AXIS} or later, and the softmax over "
            "the features, as the last axis",
        )


class _Graph:
    """The nodes of a model, to find what its output is."""

    def __init__(self, model: Any, folder: Path) -> None:
        graph = self._graph = model.graph
        domains = {entry.domain for entry in model.opset_import}
        if model.functions or not domains <= {"", "ai.onnx"}:
            others = [*(f.name for f in model.functions), *(domains - {"", "ai.onnx"})]
            used = {node.domain for node in graph.node} - {"", "ai.onnx"}
            if used or model.functions:
                raise CheckpointError(
                    f"the model uses operators of its own ({shown(', '.join(others))}), which "
                    "cannot be served: export the network in operators of ONNX alone"
                )
        if len(graph.node) > _MAX_NODES:
            raise CheckpointError(
                f"the model has {len(graph.node):,} nodes; the limit is {_MAX_NODES:,}: export its "
                "recurrent layers as nodes LSTM, GRU or RNN, not step by step"
            )
        self._folder, self._held_bytes = folder, model.ByteSize()
        versions = [
            entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")
        ]
        self._opset = max(versions, default=0)
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        if graph.sparse_initializer:
            raise CheckpointError(
                "the model has sparse tensors, which cannot be read: export it with dense ones"
            )
        inputs = [entry for entry in graph.input if entry.name not in self._constants]
        if len(inputs) != 1:
            names = ", ".join(entry.name for entry in inputs)
            raise CheckpointError(
                f"the model has {len(inputs)} inputs ({shown(names)}); only the sequence can be "
                "one: export it without initial states, lengths or masks"
            )
        self._input = inputs[0]
        self.reads_ids = self._input.type.tensor_type.elem_type in _IDS
        self.features = 0
        self.fixed_steps: int | None = None  # if the file states their number

    def output(self, option: object) -> str:
        """Return the name of the output to serve, by the option "output"; raises `OptionError`."""
        names = [entry.name for entry in self._graph.output]
        if option is None and len(names) == 1:
            return str(names[0])
        if not isinstance(option, str) or option not in names:
            raise OptionError(
                f'the model has the outputs {shown(", ".join(names))}: choose one with "output" in '
                "--options"
            )
        return option

    def run(self, output: str, steps: int, batch_first: bool) -> Flow:
        """Return what an output is, if the batch is the input's first axis, or its second."""
        self._budget = Budget(self._held_bytes)
        values: dict[str, Value] = {self._input.name: self._start(steps, batch_first)}
        for node in self._needed(output):
            label = f"node {shown(node.name or node.output[0])} ({shown(node.op_type)})"
            try:
                inputs = [self._value(name, values) if name else None for name in node.input]
                results = self._node(node, inputs)
            except Refused as error:
                raise CheckpointError(f"{label} {error}") from None
            values.update(zip(node.output, results, strict=False))
        if output not in values:
            raise CheckpointError(f"no node computes the output {shown(output)}: {INVALID}")
        try:
            return rows_of(values[output], output)
        except Refused as error:
            raise CheckpointError(f"output {shown(output)} {error}") from None

    def _start(self, steps: int, batch_first: bool) -> Flow:
        """Return the graph's input: ids or features, with the axes in their order."""
        tensor = self._input.type.tensor_type
        shape = [
            dim.dim_value if dim.WhichOneof("value") == "dim_value" else None
            for dim in tensor.shape.dim
        ]
        outer = len(shape) - (0 if self.reads_ids else 1)
        if outer not in (1, 2) or (shape and not self.reads_ids and not shape[-1]):
            raise CheckpointError(
                f"input {shown(self._input.name)} has the shape {shown(shape)}; it must be ids "
                "(batch, steps), or features (batch, steps, number of features): export the "
                "network with such an input"
            )
        labels: list[Label] = ["batch", "time"] if batch_first else ["time", "batch"]
        labels = labels if outer == 2 else ["time"]
        self.fixed_steps = shape[labels.index("time")]
        axes: list[Axis] = [
            ((label, size or steps),) if label == "time" or (size or 1) > 1 else ()
            for label, size in zip(labels, shape, strict=False)
        ]
        if not self.reads_ids:
            self.features = int(shape[-1] or 0)
            axes.append((("feature", self.features),))
        return Flow((), tuple(axes))

    def _needed(self, output: str) -> Iterator[Any]:
        """Yield the nodes that an output needs, in their order, which ONNX requires to be one."""
        values, nodes = {output}, []
        for node in reversed(self._graph.node):
            if values.intersection(node.output):
                nodes.append(node)
                values.update(node.input)
        return iter(nodes[::-1])

    def _value(self, name: str, values: dict[str, Value]) -> Value:
        if name not in values:
            if name not in self._constants:
                raise Refused(f"reads {shown(name)}, which no node before it computes", INVALID)
            tensor = self._constants[name]
            array = array_of(tensor, self._folder)
            self._budget.take_constant(tensor, array, self._folder)
            values[name] = Const(array)
        return values[name]

    def _node(self, node: Any, inputs: list[Value | None]) -> tuple[Value, ...]:
        """Return the outputs of a node; raises `Refused` and `OtherAxis`."""
        kind, name = node.op_type, shown(node.name or node.output[0])
        if node.domain not in ("", "ai.onnx"):
            raise Refused(f"is of the domain {shown(node.domain)}, which cannot be served")
        attributes = {entry.name: self._attribute(entry) for entry in node.attribute}
        if kind in ("Softmax", "LogSoftmax") and self._opset < _SOFTMAX_OF_LAST_AXIS:
            attributes.setdefault("axis", 1)
            _check_last_axis(inputs, attributes["axis"])
        if kind == "Constant":
            return (self._constant(attributes),)
        first = inputs[0] if inputs else None
        if kind == "Shape" and isinstance(first, (Flow, States)):
            shape = np.asarray(sizes(first.axes), np.int64)
            begin, end = attributes.get("start", 0), attributes.get("end", len(shape))
            return (Const(shape[begin:end], sized=True),)
        if kind == "Shape" and isinstance(first, Const):
            return (Const(np.asarray(first.array.shape, np.int64)),)
        constants = [value for value in inputs if value is None or isinstance(value, Const)]
        if len(constants) == len(inputs) and kind not in _RECURRENT:
            result = fold(kind, constants, attributes)
            self._budget.take_result(result, inputs)
            return (result,)
        self._budget.take_weights(inputs)
        if kind in _RECURRENT:
            return recurrent_node(kind, name, inputs, attributes)
        if kind in _SAME and first is not None:
            if kind == "Dropout" and _trains(inputs):
                raise Refused("is in training mode", "export the network in evaluation mode")
            return self._same(kind, first, attributes)
        if kind in AXIS_NODES:
            return (axis_node(kind, name, inputs, attributes),)
        if kind in ROW_NODES:
            return (row_node(kind, name, inputs, attributes),)
        raise Refused("cannot be served")

    def _same(self, kind: str, value: Value, attributes: dict[str, Any]) -> tuple[Value, ...]:
        is_ids = isinstance(value, Flow) and axis_of(value, "feature") is None
        if kind == "Cast" and (attributes["to"] not in ((6, 7) if is_ids else (1, 10, 11))):
            raise Refused("turns the network's numbers into another type")
        return (value,)

    def _constant(self, attributes: dict[str, Any]) -> Const:
        if "value" in attributes:
            return Const(attributes["value"])
        for name, dtype in (("value_float", np.float32), ("value_int", np.int64)):
            for each in (name, f"{name}s"):
                if each in attributes:
                    return Const(np.asarray(attributes[each], dtype))
        raise Refused("is not a constant of numbers")

    def _attribute(self, attribute: Any) -> Any:
        """Return an attribute's value; a subgraph is never run."""
        fields = {1: "f", 2: "i", 3: "s", 6: "floats", 7: "ints", 8: "strings"}
        if attribute.ref_attr_name or (attribute.type not in fields and attribute.type != 4):
            raise Refused(f"has the attribute {shown(attribute.name)}, which cannot be served")
        if attribute.type == 4:
            return array_of(attribute.t, self._folder)
        value = getattr(attribute, fields[attribute.type])
        return list(value) if attribute.type > 4 else value
