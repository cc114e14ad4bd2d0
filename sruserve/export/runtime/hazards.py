"""Operators of a file that could end the whole process by a signal, and not only their run.

ONNX Runtime answers most wrong inputs with an error. It does not for the least integer divided by
-1, a recurrent operator without steps, sequences or features, and a negative number of batch axes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from sruserve.model.errors import CheckpointError

_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE}
_TYPE_OF = {  # of the outputs of operators that always have the same one
    **dict.fromkeys(("And", "Equal", "Greater", "GreaterOrEqual", "Less", "Or"), 9),
    **dict.fromkeys(("ArgMax", "Shape"), 7),
    "MatMulInteger": 6,
}
_TYPED_BY = {"Where": 1, "QuantizeLinear": 2}  # the input whose type outputs have; others: 0
_RECURRENT = ("GRU", "LSTM", "RNN")
_UNKNOWN = int(onnx.TensorProto.UNDEFINED)
_NO_SIZE = -2  # of an axis in Reshape, which then fails
_GUARD = "sruserve_guard"


def check_hazards(graph: Any, path: Path) -> None:
    """Raise `CheckpointError` for nodes that could end the process.

    Div must divide floats, Mod by a positive constant, and GatherND have no negative `batch_dims`.
    """
    types: dict[str, int] = {}
    _find_types(graph, types)
    _check(graph, types, {}, path)


def guard_recurrences(graph: Any) -> None:
    """Let the recurrent operators of a graph fail, with an error, for inputs without numbers."""
    names = iter(range(1 << 30))
    constants = {"zero": np.int64(0), "no_size": np.int64(_NO_SIZE)}
    if _guard(graph, names):
        for name, value in constants.items():
            graph.initializer.append(numpy_helper.from_array(np.asarray(value), _named(name)))


def _guard(graph: Any, names: Any) -> bool:
    guarded, has_recurrent = [], False
    for node in graph.node:
        for inner in graphs_in(node):
            has_recurrent |= _guard(inner, names)
        if node.op_type in _RECURRENT and node.input:
            has_recurrent, number = True, next(names)
            shape, some, sizes, x = (
                _named(f"{part}{number}") for part in ("shape", "some", "sizes", "x")
            )
            guarded += [
                helper.make_node("Shape", [node.input[0]], [shape]),
                helper.make_node("Greater", [shape, _named("zero")], [some]),
                helper.make_node("Where", [some, shape, _named("no_size")], [sizes]),
                helper.make_node("Reshape", [node.input[0], sizes], [x]),
            ]
            node.input[0] = x
        guarded.append(node)
    del graph.node[:]
    graph.node.extend(guarded)
    return has_recurrent


def graphs_in(node: Any) -> list[Any]:
    """Return the graphs that are attributes of a node."""
    return [
        inner
        for attribute in node.attribute
        for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]
    ]


def _named(part: str) -> str:
    return f"{_GUARD}/{part}"


def _find_types(graph: Any, types: dict[str, int]) -> None:
    """Add the element types of a graph's values; a name with several types has none."""
    for tensor in graph.initializer:
        _add(types, tensor.name, tensor.data_type)
    for value in graph.input:
        _add(types, value.name, value.type.tensor_type.elem_type)
    for node in graph.node:
        inner = graphs_in(node)
        for body in inner:
            _find_types(body, types)
        outputs = [types.get(value.name, _UNKNOWN) for body in inner for value in body.output]
        for number, name in enumerate(node.output):
            if inner:
                _add(types, name, outputs[number] if number < len(outputs) else _UNKNOWN)
            else:
                _add(types, name, _type_of(node, types))


def _add(types: dict[str, int], name: str, kind: int) -> None:
    if types.setdefault(name, kind) != kind:
        types[name] = _UNKNOWN


def _type_of(node: Any, types: dict[str, int]) -> int:
    if node.op_type in _TYPE_OF:
        return _TYPE_OF[str(node.op_type)]
    if node.op_type == "Cast":
        stated = [int(attribute.i) for attribute in node.attribute if attribute.name == "to"]
        return stated[0] if len(stated) == 1 else _UNKNOWN
    place = _TYPED_BY.get(node.op_type, 0)
    return types.get(str(node.input[place]), _UNKNOWN) if place < len(node.input) else _UNKNOWN


def _check(graph: Any, types: dict[str, int], constants: dict[str, Any], path: Path) -> None:
    computed = {value.name for value in graph.input}.union(*(node.output for node in graph.node))
    constants = {name: tensor for name, tensor in constants.items() if name not in computed}
    constants |= {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        for inner in graphs_in(node):
            _check(inner, types, constants, path)
        if does := _hazard(node, types, constants):
            raise CheckpointError(f"{path}: node {node.name[:80]!r} {does}, which no export does")


def _hazard(node: Any, types: dict[str, int], constants: dict[str, Any]) -> str | None:
    """Return what a node does that may end the process, if anything."""
    if node.op_type == "Div" and any(types.get(name) not in _FLOATS for name in node.input):
        return "divides integers"
    if node.op_type == "Mod" and not all(
        _is_positive(constants.get(name)) for name in node.input[1:]
    ):
        return "takes a remainder by something else than a positive constant"
    if node.op_type == "GatherND" and any(
        attribute.name == "batch_dims" and attribute.i < 0 for attribute in node.attribute
    ):
        return "has a negative number of batch axes"
    return None


def _is_positive(tensor: Any) -> bool:
    """Whether a tensor is one positive integer of 64 bits."""
    if tensor is None or tensor.data_type != onnx.TensorProto.INT64 or tensor.dims:
        return False
    try:
        return bool(numpy_helper.to_array(tensor) > 0)
    except ValueError:  # its bytes are not those of a number
        return False
