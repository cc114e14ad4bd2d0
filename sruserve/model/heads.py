"""Heads: what turns the stack's outputs into scores."""

from typing import Literal

from pydantic import Field, NonNegativeInt

from sruserve.model.clusters import Clustered, Width
from sruserve.model.embeddings import EmbeddingConfig

Pooling = Literal["last", "mean", "max", "attention"]
Combine = Literal["concat", "difference"]


class HeadConfig(Clustered):
    """A linear layer; with `size`, an adaptive softmax; with `experts`, a mixture of softmaxes."""

    pooling: Pooling = Field("last", description="What of a sequence's outputs the head reads.")
    bias: bool = Field(True, description="Whether the linear layer has one.")
    tied: bool = Field(False, description="The head's weight is the embedding's.")
    experts: NonNegativeInt = Field(0, le=1024, description="Softmaxes in the mixture; 0 is one.")
    latent_size: Width | None = Field(
        None, description="Width of an expert's features, or inside attention; None: the stack's."
    )
    combine: Combine = Field(
        "concat", description="A pair's features: [a; b], or [a; b; |a - b|; a * b]."
    )

    def shapes(self, task: str, outputs: int | None, width: int) -> dict[str, tuple[int, ...]]:
        """Its tensors over a stack of `width`; none without `outputs`.

        A plain or mixed head that is tied reads `embedding.weight` for `output.weight`; a tied
        adaptive one keeps its own, and the embedding reads those.
        """
        if outputs is None:
            return {}
        shapes: dict[str, tuple[int, ...]] = {}
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
        """How many numbers a pair is described by, over a stack of `width`."""
        return width * (2 if self.combine == "concat" else 4)

    def states(self, task: str, width: int) -> list[tuple[str, tuple[int, ...]]]:
        """What pooling of a stream remembers: the last entries of its state."""
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
        """Raise ValueError where this head is none for such a network."""
        if self.pooling == "attention" and task != "pair":
            raise ValueError("pooling attention is for task pair")
        if self.pooling != "last" and task in ("generate", "tag"):
            raise ValueError(f"task {task} scores every step: it has no pooling")
        if (self.adaptive or self.experts or self.tied) and task != "generate":
            raise ValueError("cutoffs, experts and tied are for task generate")
        if self.adaptive and self.experts:
            raise ValueError("a head has either clusters (size) or experts")
        self.check_vocabulary(outputs)
        if not self.tied:
            return
        if self.adaptive or embedding.adaptive:
            if outputs is None or self.clusters(outputs) != embedding.clusters(outputs):
                raise ValueError(
                    "a tied head and its embedding need equal cutoffs, size and divide"
                )
        elif (reads := (self.latent_size or width) if self.experts else width) != input_size:
            raise ValueError(
                f"a tied head reads {reads} numbers, an embedding's row is {input_size}"
            )
