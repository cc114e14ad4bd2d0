"""Build what follows the stack: the pooling, the features of pairs, the head."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sruserve.model.cells.stack import Builder
from sruserve.model.heads.attention_pool import AttentionPool
from sruserve.model.heads.config import HeadConfig
from sruserve.model.heads.final_state import FinalState
from sruserve.model.heads.pairs import PairFeatures, StepScores
from sruserve.model.heads.pooling import PoolLayer, PoolLayers
from sruserve.model.heads.row_layers import make_layers, widest
from sruserve.model.heads.segments import FinalAttentionPool
from sruserve.model.heads.softmaxes import (
    MAX_NUMBERS,
    AdaptiveHead,
    Head,
    LayeredHead,
    LinearHead,
    MixtureHead,
)
from sruserve.model.state import StateLayout


def make_head(
    config: HeadConfig,
    tensors: Mapping[str, Tensor],
    outputs: int | None,
    builder: Builder,
    max_numbers: int = MAX_NUMBERS,
) -> Head | None:
    """Build a head from the tensors that `HeadConfig.shapes` names, and a plain embedding's.

    max_numbers: limit on intermediate numbers of the head at a time.
    """
    if outputs is None:
        return None
    head = _scorer(config, tensors, outputs, builder, max_numbers)
    if not config.layers and not config.output_layers:
        return head
    return LayeredHead(
        make_layers(config.layers, tensors, "head.", builder),
        head,
        make_layers(config.output_layers, tensors, "output_layers.", builder),
        outputs,
        widest((*config.layers, *config.output_layers)),
        max_numbers,
    )


def make_pairs(
    config: HeadConfig, tensors: Mapping[str, Tensor], width: int, builder: Builder
) -> PairFeatures:
    """For task pair: build the features between a stack of `width` and the head."""
    (pooling,) = config.poolings
    attention = []
    if pooling == "attention":
        for side in range(2):
            own = f"output.pool.{side}"
            inner = builder.linear(tensors[f"{own}.weight"], tensors[f"{own}.bias"])
            scores = builder.linear(tensors[f"{own}.score"][None])
            attention.append(StepScores(inner, scores))
    return PairFeatures(pooling, width, config.combine == "difference", attention)


def make_pool(
    config: HeadConfig,
    task: str,
    tensors: Mapping[str, Tensor],
    width: int,
    layout: StateLayout,
    builder: Builder,
    directions: int = 1,
) -> PoolLayer | PoolLayers | AttentionPool | FinalAttentionPool | None:
    """Build what pools the outputs of a stack of `width`; None if nothing does."""
    scores = make_layers(config.attention, tensors, "pool.", builder)
    if scores is not None and config.attention_final:
        return FinalAttentionPool(scores, widest(config.attention), width // directions)
    if not config.states(task, width):
        return None
    running = {
        kind: PoolLayer(kind == "mean", width, layout.column(name), layout.column(f"{name}.steps"))
        for kind, name in config.running()
    }
    if scores is None:
        parts = tuple(running.get(kind) for kind in config.poolings if kind != "final")
        return PoolLayers(parts, width) if len(parts) > 1 else parts[0]
    return AttentionPool(
        scores=scores,
        widest=widest(config.attention),
        width=width,
        column=layout.column("pool"),
        largest=layout.column("pool.largest"),
        previous=layout.column("pool.previous"),
        steps=layout.column("pool.steps"),
    )


def make_final(config: HeadConfig, width: int, layout: StateLayout) -> FinalState | None:
    """Build what pools end states, beside other poolings of `width`; None if nothing does."""
    if "final" not in config.poolings:
        return None
    before = config.poolings.index("final") * width
    return FinalState(config.final, layout, before if len(config.poolings) > 1 else None)


def _scorer(
    config: HeadConfig,
    tensors: Mapping[str, Tensor],
    outputs: int,
    builder: Builder,
    max_numbers: int,
) -> Head:
    """Build the part of a head that its own layers surround."""
    if config.adaptive:
        clusters = config.clusters(outputs)
        projections = [tensors[f"output.{i}.proj"] for i in range(len(clusters))]
        linears = [
            builder.linear(tensors[f"output.{i}.weight"], tensors[f"output.{i}.bias"])
            for i in range(len(clusters))
        ]
        projection = builder.linear(torch.cat(projections, 1).T)
        return AdaptiveHead(clusters, projection, linears, max_numbers)
    weight = tensors["embedding.weight" if config.tied else "output.weight"]
    linear = builder.linear(weight, tensors["output.bias"] if config.bias else None)
    if not config.experts:
        return LinearHead(linear, max_numbers)
    return MixtureHead(
        prior=builder.linear(tensors["output.prior.weight"]),
        latent=builder.linear(tensors["output.latent.weight"], tensors["output.latent.bias"]),
        decoder=linear,
        max_numbers=max_numbers,
    )
