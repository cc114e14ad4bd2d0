"""What turns a row of the stack's outputs into scores, as nodes."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sruserve.export.onnx.graph import Graph, Value, split
from sruserve.export.onnx.row_layers import add_row_layers
from sruserve.export.plain import PlainLinear
from sruserve.model.config import ModelConfig
from sruserve.model.heads.softmaxes import SMALLEST


def add_head(
    graph: Graph, config: ModelConfig, tensors: Mapping[str, Tensor], hidden: Value
) -> Value:
    """Score rows (..., width); returns (..., outputs), as `Network.logits`."""
    head = config.head
    hidden = add_row_layers(graph, head.layers, tensors, "head.", hidden)
    if head.adaptive:
        scores = _adaptive(graph, config, tensors, hidden)
    elif head.experts:
        scores = _mixture(graph, config, tensors, hidden)
    else:
        scores = _linear(graph, config, tensors, hidden)
    return add_row_layers(graph, head.output_layers, tensors, "output_layers.", scores)


def add_activation(graph: Graph, config: ModelConfig, logits: Value) -> Value:
    """Turn logits (..., outputs) into what a reply shows."""
    match config.activation:
        case "softmax":
            return graph.op.Softmax(logits, axis=-1)
        case "sigmoid":
            return graph.op.Sigmoid(logits)
        case "none":
            return logits


def _linear(
    graph: Graph, config: ModelConfig, tensors: Mapping[str, Tensor], hidden: Value
) -> Value:
    head, op = config.head, graph.op
    bias = tensors["output.bias"].float() if head.bias else None
    if not head.tied:
        weight = tensors["output.weight"].float()
        return graph.linear(hidden, PlainLinear(weight, bias), "output")
    scores = graph.against(hidden, tensors["embedding.weight"].float(), "embedding")
    return scores if bias is None else op.Add(scores, graph.weight("output.bias", bias))


def _mixture(
    graph: Graph, config: ModelConfig, tensors: Mapping[str, Tensor], hidden: Value
) -> Value:
    """See `MixtureHead`."""
    op, experts = graph.op, config.head.experts
    prior = PlainLinear(tensors["output.prior.weight"].float(), None)
    latent = PlainLinear(
        tensors["output.latent.weight"].float(), tensors["output.latent.bias"].float()
    )
    shares = op.Softmax(graph.linear(hidden, prior, "output.prior"), axis=-1)
    features = op.Tanh(graph.linear(hidden, latent, "output.latent"))
    sizes = [latent.outputs // experts] * experts
    mixture = None
    parts = split(op, features, sizes)
    for share, part in zip(split(op, shares, [1] * experts), parts, strict=True):
        own = op.Mul(op.Softmax(_linear(graph, config, tensors, part), axis=-1), share)
        mixture = own if mixture is None else op.Add(mixture, own)
    return op.Log(op.Add(mixture, SMALLEST))


def _adaptive(
    graph: Graph, config: ModelConfig, tensors: Mapping[str, Tensor], hidden: Value
) -> Value:
    """See `AdaptiveHead`."""
    op = graph.op
    assert config.outputs is not None
    clusters = config.head.clusters(config.outputs)
    projections = [tensors[f"output.{i}.proj"].float() for i in range(len(clusters))]
    projection = PlainLinear(torch.cat(projections, 1).T.contiguous(), None)
    projected = graph.linear(hidden, projection, "output.projection")
    own = split(op, projected, [cluster.width for cluster in clusters])
    parts: list[Value] = []
    others: list[Value] = []
    for i, part in enumerate(own):
        linear = PlainLinear(
            tensors[f"output.{i}.weight"].float(), tensors[f"output.{i}.bias"].float()
        )
        scores = op.LogSoftmax(graph.linear(part, linear, f"output.{i}"), axis=-1)
        if i == 0:
            sizes = [clusters[0].words, *[1] * (len(clusters) - 1)]
            scores, *others = split(op, scores, sizes)
        else:
            scores = op.Add(scores, others[-i])
        parts.append(scores)
    return parts[0] if len(parts) == 1 else op.Concat(*parts, axis=-1)
