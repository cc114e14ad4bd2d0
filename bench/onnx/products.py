"""A floor of graphs of sequences: the products of all layers, and nothing else."""

from collections.abc import Mapping

import onnx_ir as ir
from torch import Tensor

from sruserve.export.onnx.graph import FLOAT, Graph
from sruserve.export.plain import PlainLinear
from sruserve.model.config import ModelConfig

_PLANES = 3


def products_graph(config: ModelConfig, tensors: Mapping[str, Tensor]) -> ir.Model:
    """Make a graph of the products of SRU layers as wide as their input.

    A layer's last plane is the next layer's input; the others are outputs, so that the runtime
    computes them. Input: features (rows, n); output: hidden (rows, n).
    """
    graph, width = Graph("products"), config.rnn.output_size
    x = graph.input("features", FLOAT, ("rows", width))
    for layer in range(config.rnn.num_layers):
        with graph.scope(f"layers.{layer}"):
            weight = tensors[f"rnn.rnn_lst.{layer}.weight"]
            planes = weight.view(len(weight), width, _PLANES).permute(2, 1, 0)
            *others, x = (
                graph.linear(x, PlainLinear(plane.contiguous(), None), f"linear.{i}")
                for i, plane in enumerate(planes)
            )
        for i, plane in enumerate(others):
            graph.output(f"plane.{layer}.{i}", plane, ("rows", width))
    graph.output("hidden", x, ("rows", width))
    return graph.model({})
