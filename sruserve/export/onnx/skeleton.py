"""The graph that an export of a config makes, without its weights."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import onnx_ir as ir
import torch
from torch import Tensor

from sruserve.export.onnx.graph import Graph
from sruserve.export.onnx.integer import RoundedWeight
from sruserve.export.onnx.network import GraphKind, GraphMaker
from sruserve.model.config import ModelConfig
from sruserve.model.network import network_shapes

Weights = dict[str, tuple[int, tuple[int, ...]]]
"""The element type of ONNX, and the shape, of each weight by its name."""

_BYTE = int(ir.DataType.UINT8)


def skeleton(config: ModelConfig, kind: GraphKind, types: Mapping[str, int]) -> tuple[Any, Weights]:
    """Return the graph as a `GraphProto` that lacks its weights, and these.

    types: the element types of a file's weights by name. They say what an export decides by the
    values of weights: which are int8, and which biases are not zeros.
    """
    weights: Weights = {}
    tensors = {name: _zeros(shape) for name, shape in network_shapes(config).items()}
    make_graph = partial(_Skeleton, types, weights)
    model = GraphMaker(config, tensors, make_graph).graph(kind, {})
    for name in weights:
        del model.graph.initializers[name]
    return ir.to_proto(model).graph, weights


class _Skeleton(Graph):
    def __init__(
        self, types: Mapping[str, int], weights: Weights, name: str, integer: bool
    ) -> None:
        super().__init__(name, integer)
        self._types, self._added = types, weights

    def needs_bias(self, bias: Tensor, name: str) -> bool:
        del bias
        return self._full(name) in self._types

    def _integers(self, weight: Tensor, name: str) -> RoundedWeight | None:
        if not self.integer or self._types.get(self._full(name)) != _BYTE:
            return None
        return RoundedWeight(_zeros(weight.shape, torch.uint8), _zeros(weight.shape[:1]))

    def _stored(self, full: str, tensor: Tensor) -> ir.TensorProtocol:
        stored = ir.tensor(_zeros(tensor.shape, tensor.dtype).numpy(), name=full)
        self._added[full] = int(stored.dtype), tuple(tensor.shape)
        return stored


def _zeros(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Zeros that take no memory."""
    return torch.zeros((), dtype=dtype).expand(shape)
