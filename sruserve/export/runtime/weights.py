"""The weights of a graph as its session needs them: transposed once, and with signs for VNNI.

Sessions fold no constants, because a file could make a folded one of any size.
"""

from collections import Counter
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import onnx
import torch

from sruserve.export.runtime.recurrence_guard import graphs_in

_SIGN = np.uint8(0x80)  # to flip it subtracts the byte of zero, 128
_DTYPES: dict[int, np.dtype[Any]] = {
    onnx.TensorProto.FLOAT: np.dtype("<f4"),
    onnx.TensorProto.UINT8: np.dtype("u1"),
}


def multiplies_signed() -> bool:
    """Whether this processor sums products of bytes and int8 numbers exactly, and fast.

    Other processors of x86 saturate in these products, so a file has unsigned weights. VNNI takes
    several times as long for these.
    """
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("avx512_vnni") or capabilities.get("avx_vnni"))


def transpose_tables(graph: Any) -> None:
    """Replace the transposed table of a tied embedding by a weight."""
    tables = {tensor.name: tensor for tensor in graph.initializer}
    kept = []
    for node in graph.node:
        table = tables.pop(node.input[0], None) if node.op_type == "Transpose" else None
        if table is None or not _is_matrix(table):
            kept.append(node)
            continue
        numbers = np.frombuffer(table.raw_data, _DTYPES[table.data_type]).reshape(table.dims)
        transposed = graph.initializer.add(name=node.output[0], data_type=table.data_type)
        transposed.dims.extend(reversed(table.dims))
        transposed.raw_data = numbers.T.tobytes()
    del graph.node[:]
    graph.node.extend(kept)


def make_signed(graph: Any) -> None:
    """Change the weights of a graph that are only multiplied; the products stay the same."""
    weights = {tensor.name: tensor for tensor in graph.initializer if _is_bytes(tensor)}
    uses = Counter(name for node in nodes(graph) for name in node.input)
    products: dict[str, list[Any]] = {}
    for node in nodes(graph):
        if node.op_type == "MatMulInteger" and len(node.input) == 4 and node.input[1] in weights:
            products.setdefault(node.input[1], []).append(node)
    for name, own in products.items():
        if uses[name] == len(own):
            numbers = np.frombuffer(weights[name].raw_data, np.uint8)
            weights[name].raw_data = (numbers ^ _SIGN).tobytes()
            weights[name].data_type = onnx.TensorProto.INT8
            for node in own:
                del node.input[3:]  # the byte of a weight's zero


def nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph, and of the graphs inside it."""
    for node in graph.node:
        yield node
        for inner in graphs_in(node):
            yield from nodes(inner)


def _is_bytes(tensor: Any) -> bool:
    return bool(tensor.data_type == onnx.TensorProto.UINT8 and tensor.HasField("raw_data"))


def _is_matrix(tensor: Any) -> bool:
    if tensor.data_type not in _DTYPES or len(tensor.dims) != 2:
        return False
    size = prod(tensor.dims) * _DTYPES[tensor.data_type].itemsize
    return bool(0 < size == len(tensor.raw_data))
