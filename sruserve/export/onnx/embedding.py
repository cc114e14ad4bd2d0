"""Ids to the rows that the first layer reads, as nodes."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sruserve.export.onnx.graph import Graph, Value
from sruserve.export.plain import PlainLinear
from sruserve.model.config import ModelConfig


def add_embedding(
    graph: Graph, config: ModelConfig, tensors: Mapping[str, Tensor], ids: Value
) -> Value:
    """Look up ids (...); returns (..., width)."""
    op, embedding = graph.op, config.embedding
    assert config.vocab_size is not None
    if not embedding.adaptive:
        rows = graph.look_up(tensors["embedding.weight"].float(), ids, "embedding")
        return rows if embedding.scale == 1 else op.Mul(rows, embedding.scale)
    parts, projections = [], []
    owner = "output" if config.head.tied else "embedding"
    for i, cluster in enumerate(embedding.clusters(config.vocab_size)):
        words = tensors[f"{owner}.{i}.weight"][: cluster.words].float()
        table = torch.cat((words, words.new_zeros(1, words.shape[1])))
        inside = op.And(op.GreaterOrEqual(ids, cluster.first), op.Less(ids, cluster.end))
        row = op.Where(inside, op.Sub(ids, cluster.first), cluster.words)
        parts.append(graph.look_up(table, row, f"embedding.{i}"))
        projections.append(tensors[f"embedding.{i}.proj"].float())
    weight = torch.cat(projections, 1) * embedding.scale
    joined = op.Concat(*parts, axis=-1)
    return graph.linear(joined, PlainLinear(weight, None), "embedding.projection")
