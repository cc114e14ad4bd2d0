"""The rival of our graphs of sequences: a Scan whose body is the whole cell of the SRU."""

from collections.abc import Mapping

import onnx_ir as ir
from torch import Tensor

from sruserve.export.onnx.graph import FLOAT, Body, Graph, Op, Value, split
from sruserve.export.plain import PlainLinear
from sruserve.model.config import ModelConfig


def whole_cell_graph(config: ModelConfig, tensors: Mapping[str, Tensor]) -> ir.Model:
    """Make a graph of SRU layers as wide as their input, with the products outside of the Scan.

    Inputs: features (time, batch, n), state (layers, batch, n); output: hidden (time, batch, n).
    """
    graph, width = Graph("whole-cell"), config.rnn.output_size
    op = graph.op
    x = graph.input("features", FLOAT, ("time", "batch", width))
    states = graph.input("state", FLOAT, (config.rnn.num_layers, "batch", width))
    for layer in range(config.rnn.num_layers):
        own = f"rnn.rnn_lst.{layer}"
        with graph.scope(f"layers.{layer}"):
            weight = tensors[f"{own}.weight"]
            planes = weight.view(len(weight), width, -1).permute(2, 1, 0).reshape(-1, len(weight))
            u = graph.linear(x, PlainLinear(planes.contiguous(), None), "linear")
            forget, reset = tensors[f"{own}.weight_c"].view(2, width)
            forget_bias, reset_bias = tensors[f"{own}.bias"].view(2, width)
            weights = [
                graph.weight(name, tensor)
                for name, tensor in (
                    ("forget", forget),
                    ("reset", reset),
                    ("forget_bias", forget_bias),
                    ("reset_bias", reset_bias),
                )
            ]
            body = _cell(*weights)
            c = op.Squeeze(op.Slice(states, [layer], [layer + 1], [0]), [0])
            inputs = [*split(op, u, [width] * 3), x]
            _, x = graph.scan(body, [c, op.Mul(c, 0.0)], inputs)
    graph.output("hidden", x, ("time", "batch", width))
    return graph.model({})


def _cell(w_f: Value, w_r: Value, b_f: Value, b_r: Value) -> Body:
    def body(op: Op, c: Value, _: Value, z: Value, u_f: Value, u_r: Value, x: Value) -> list[Value]:
        f = op.Sigmoid(op.Add(op.Add(u_f, op.Mul(w_f, c)), b_f))
        r = op.Sigmoid(op.Add(op.Add(u_r, op.Mul(w_r, c)), b_r))
        new = op.Add(z, op.Mul(op.Sub(c, z), f))
        return [new, op.Add(x, op.Mul(op.Sub(new, x), r))]

    return body
