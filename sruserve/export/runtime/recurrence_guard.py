"""Let recurrent operators fail with an error where ONNX Runtime would end the process.

It divides by the number of steps, sequences or features of GRU, LSTM and RNN, also by zero.
"""

from typing import Any

import numpy as np
from onnx import helper, numpy_helper

_RECURRENT = ("GRU", "LSTM", "RNN")
_NO_SIZE = -2  # of an axis in Reshape, which then fails
_GUARD = "sruserve_guard"


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
