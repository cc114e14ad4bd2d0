"""The layers after the stack, as `config.json` describes them: pooling, pair features, scores."""

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor

from sruserve.model.cells.stack import Builder, Shapes, Width
from sruserve.model.clusters import Clustered
from sruserve.model.embeddings import EmbeddingConfig
from sruserve.model.pairs import PairFeatures, StepScores
from sruserve.model.pooling import PoolLayer
from sruserve.model.softmaxes import AdaptiveHead, Head, LinearHead, MixtureHead
from sruserve.model.state import StateLayout

_MIXED_SCORES = 1 << 24  # limit on the scores of one row in all experts

Pooling = Literal["last", "mean", "max", "attention"]
Combine = Literal["concat", "difference"]


class HeadConfig(Clustered):
    """A linear layer; with `size`, an adaptive softmax; with `experts`, a mixture of softmaxes."""

    pooling: Pooling = Field("last", description="How the head pools a sequence's outputs.")
    bias: bool = Field(True, description="Whether the linear layer has a bias.")
    tied: bool = Field(False, description="Whether the head's weight is the embedding's.")
    experts: NonNegativeInt = Field(
        0, le=1024, description="Number of softmaxes in the mixture; 0: one plain softmax."
    )
    latent_size: Width | None = Field(
        None,
        description="Width of an expert's features, or of attention; None: the stack's width.",
    )
    combine: Combine = Field(
        "concat", description="A pair's features: [a; b], or [a; b; |a - b|; a * b]."
    )

    def shapes(self, task: str, outputs: int | None, width: int) -> Shapes:
        """Return its tensors' shapes over a stack of `width`; none without `outputs`.

        A tied plain or mixed head uses `embedding.weight` as `output.weight`. A tied adaptive head
        has its own tensors, and the embedding uses those.
        """
        if outputs is None:
            return {}
        shapes: Shapes = {}
        latent = self.latent_size or width
        if self.adaptive:
            clusters = self.clusters(outputs)
            for i, cluster in enumerate(clusters):
                rows = cluster.words + (len(clusters) - 1 if i == 0 else 0)
                shapes[f"output.{i}.weight"] = (rows, cluster.width)
                shapes[f"output.{i}.bias"] = (rows,)
                shapes[f"output.{i}.proj"] = (width, cluster.width)
            return shapes
        inputs = self.features(width) if task == "pair" else width
        if self.experts:
            inputs = latent
            shapes["output.prior.weight"] = (self.experts, width)
            shapes["output.latent.weight"] = (self.experts * latent, width)
            shapes["output.latent.bias"] = (self.experts * latent,)
        if not self.tied:
            shapes["output.weight"] = (outputs, inputs)
        if self.bias:
            shapes["output.bias"] = (outputs,)
        if task == "pair" and self.pooling == "attention":
            for side in range(2):
                shapes[f"output.pool.{side}.weight"] = (latent, width)
                shapes[f"output.pool.{side}.bias"] = (latent,)
                shapes[f"output.pool.{side}.score"] = (latent,)
        return shapes

    def features(self, width: int) -> int:
        """Return the number of features of a pair, over a stack of `width`."""
        return width * (2 if self.combine == "concat" else 4)

    def make(
        self, tensors: Mapping[str, Tensor], outputs: int | None, builder: Builder
    ) -> Head | None:
        """Build the head from the tensors that `shapes` names, and those of a plain embedding."""
        if outputs is None:
            return None
        if self.adaptive:
            clusters = self.clusters(outputs)
            projections = [tensors[f"output.{i}.proj"] for i in range(len(clusters))]
            linears = [
                builder.linear(tensors[f"output.{i}.weight"], tensors[f"output.{i}.bias"])
                for i in range(len(clusters))
            ]
            return AdaptiveHead(clusters, builder.linear(torch.cat(projections, 1).T), linears)
        weight = tensors["embedding.weight" if self.tied else "output.weight"]
        linear = builder.linear(weight, tensors["output.bias"] if self.bias else None)
        if not self.experts:
            return LinearHead(linear)
        return MixtureHead(
            prior=builder.linear(tensors["output.prior.weight"]),
            latent=builder.linear(tensors["output.latent.weight"], tensors["output.latent.bias"]),
            decoder=linear,
        )

    def pairs(self, tensors: Mapping[str, Tensor], width: int, builder: Builder) -> PairFeatures:
        """For task pair: build the features between a stack of `width` and the head."""
        attention = []
        if self.pooling == "attention":
            for side in range(2):
                own = f"output.pool.{side}"
                inner = builder.linear(tensors[f"{own}.weight"], tensors[f"{own}.bias"])
                scores = builder.linear(tensors[f"{own}.score"][None])
                attention.append(StepScores(inner, scores))
        return PairFeatures(self.pooling, width, self.combine == "difference", attention)

    def pool(self, task: str, width: int, layout: StateLayout) -> PoolLayer | None:
        """Build the layer that pools streams, after a stack of `width`; None without one."""
        if not self.states(task, width):
            return None
        column, steps = layout.column("pool"), layout.column("pool.steps")
        return PoolLayer(self.pooling == "mean", width, column, steps)

    def states(self, task: str, width: int) -> list[tuple[str, tuple[int, ...]]]:
        """Return the pooling's state entries, name and shape; they are last in a stream's state."""
        if task == "pair" or self.pooling not in ("mean", "max"):
            return []
        return [("pool", (width,)), ("pool.steps", (1,))]

    def check(
        self,
        task: str,
        outputs: int | None,
        width: int,
        embedding: EmbeddingConfig,
        input_size: int,
    ) -> None:
        """Raise ValueError unless this head fits the network."""
        if self.pooling == "attention" and task != "pair":
            raise ValueError(f"pooling attention is for task pair only, not for task {task}")
        if self.pooling != "last" and task not in ("classify", "pair"):
            raise ValueError(f"task {task} has no pooling: it returns a result for every step")
        if self.combine != "concat" and task != "pair":
            raise ValueError(f"combine is for task pair only, not for task {task}")
        if (self.adaptive or self.experts or self.tied) and task != "generate":
            raise ValueError(
                f"size, cutoffs, experts and tied are for task generate only, not for task {task}"
            )
        if self.adaptive and self.experts:
            raise ValueError("a head has either clusters (size) or experts, not both")
        if outputs is not None and self.experts * outputs > _MIXED_SCORES:
            raise ValueError(
                f"{self.experts:,} experts of {outputs:,} words have {self.experts * outputs:,} "
                f"scores in each step; the limit is {_MIXED_SCORES:,}"
            )
        self.check_vocabulary(outputs)
        if not self.tied:
            return
        if self.adaptive or embedding.adaptive:
            if outputs is None or self.clusters(outputs) != embedding.clusters(outputs):
                raise ValueError("a tied head must have its embedding's cutoffs, size and divide")
        elif (reads := (self.latent_size or width) if self.experts else width) != input_size:
            raise ValueError(
                f"a tied head of width {reads} needs an embedding of that width, not {input_size}"
            )
