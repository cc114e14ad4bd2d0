"""int8 weights with signs, which VNNI multiplies by bytes several times as fast as unsigned ones.

A file has unsigned ones, because other processors of x86 saturate in these products.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import torch

_SIGN = np.uint8(0x80)  # to flip it subtracts the byte of zero, 128


def multiplies_signed() -> bool:
    """Whether this processor sums products of bytes and int8 numbers exactly, and fast."""
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return bool(capabilities.get("avx512_vnni") or capabilities.get("avx_vnni"))


def make_signed(graph: Any) -> None:
    """Change the weights of a graph that are only multiplied; the products stay the same."""
    weights = {tensor.name: tensor for tensor in graph.initializer if _is_bytes(tensor)}
    uses = Counter(name for node in _nodes(graph) for name in node.input)
    products: dict[str, list[Any]] = {}
    for node in _nodes(graph):
        if node.op_type == "MatMulInteger" and len(node.input) == 4 and node.input[1] in weights:
            products.setdefault(node.input[1], []).append(node)
    for name, nodes in products.items():
        if uses[name] == len(nodes):
            numbers = np.frombuffer(weights[name].raw_data, np.uint8)
            weights[name].raw_data = (numbers ^ _SIGN).tobytes()
            weights[name].data_type = onnx.TensorProto.INT8
            for node in nodes:
                del node.input[3:]  # the byte of a weight's zero


def _is_bytes(tensor: Any) -> bool:
    return bool(tensor.data_type == onnx.TensorProto.UINT8 and tensor.HasField("raw_data"))


def _nodes(graph: Any) -> Iterator[Any]:
    """Yield the nodes of a graph, and of the graphs inside it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield from _nodes(inner)
