"""The layers after the stack, as `config.json` describes them: pooling, layers, scores."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, NonNegativeInt, Tag

from sruserve.model.cells.stack import MAX_LAYERS, Shapes, StackConfig, Width
from sruserve.model.clusters import Clustered
from sruserve.model.embeddings import EmbeddingConfig
from sruserve.model.heads.crf import MAX_LABELS, crf_shapes
from sruserve.model.heads.row_layers import RowLayers, output_width, shapes_of

_MIXED_SCORES = 1 << 24  # limit on the scores of one row in all experts

Pooling = Literal["last", "mean", "max", "attention", "final"]
Poolings = Annotated[
    tuple[Literal["last", "mean", "max", "final"], ...], Field(min_length=2, max_length=4)
]
Scoring = Literal["softmax", "sigmoid", "none"]
Combine = Literal["concat", "difference"]


def _form(pooling: object) -> str:
    return "list" if isinstance(pooling, (list, tuple)) else "name"


class HeadConfig(Clustered):
    """A linear layer; with `size`, an adaptive softmax; with `experts`, a mixture of softmaxes."""

    pooling: Annotated[
        Annotated[Pooling, Tag("name")] | Annotated[Poolings, Tag("list")], Discriminator(_form)
    ] = Field(
        "last",
        description="How the head pools a sequence's outputs. Several, such as [last, max, mean]: "
        "their rows, side by side.",
    )
    final: Annotated[tuple[str, ...], Field(max_length=2 * MAX_LAYERS, fail_fast=True)] = Field(
        (),
        description="For pooling final: the entries of the end state that the head reads, side by "
        "side, such as 1.h.",
    )
    attention: RowLayers = Field(
        (),
        description="For pooling attention: the layers that score a step, the last of width 1. "
        "Empty for task pair, which has its own.",
    )
    attention_final: bool = Field(
        False,
        description="For pooling attention: its layers read a step's output beside the final "
        "outputs of the last layer's directions.",
    )
    layers: RowLayers = Field((), description="Layers between the pooled row and the scores.")
    output_layers: RowLayers = Field((), description="For task regress: layers over the outputs.")
    crf: bool = Field(
        False, description="For task tag: a linear-chain CRF chooses the best path of labels."
    )
    crf_window: int = Field(
        128,
        ge=1,
        le=1024,
        description="Most steps of a stream whose labels the CRF may leave open for later chunks.",
    )
    activation: Scoring = Field(
        "softmax",
        description="What turns scores into what a reply shows: softmax for one of the labels, "
        "sigmoid for each label by itself, none for the scores themselves.",
    )
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

    @property
    def poolings(self) -> tuple[Pooling, ...]:
        """The poolings whose rows the head reads, side by side."""
        return (self.pooling,) if isinstance(self.pooling, str) else self.pooling

    def shapes(
        self, task: str, outputs: int | None, width: int, pooled: int | None = None
    ) -> Shapes:
        """Return its tensors' shapes over a stack of `width`; none without `outputs`.

        pooled: width of a pooled row, see `pooled_width`; None: `width`, or a pair's features.

        A tied plain or mixed head uses `embedding.weight` as `output.weight`. A tied adaptive head
        has its own tensors, and the embedding uses those.
        """
        if outputs is None:
            return {}
        shapes = shapes_of(self.attention, self._attention_width(width), "pool.")
        inputs = pooled or (self.features(width) if task == "pair" else width)
        shapes |= shapes_of(self.layers, inputs, "head.")
        shapes |= shapes_of(self.output_layers, outputs, "output_layers.")
        inputs = output_width(self.layers, inputs)
        if self.adaptive:
            clusters = self.clusters(outputs)
            for i, cluster in enumerate(clusters):
                rows = cluster.words + (len(clusters) - 1 if i == 0 else 0)
                shapes[f"output.{i}.weight"] = (rows, cluster.width)
                shapes[f"output.{i}.bias"] = (rows,)
                shapes[f"output.{i}.proj"] = (inputs, cluster.width)
            return shapes
        if self.experts:
            latent = self.latent_size or inputs
            shapes["output.prior.weight"] = (self.experts, inputs)
            shapes["output.latent.weight"] = (self.experts * latent, inputs)
            shapes["output.latent.bias"] = (self.experts * latent,)
            inputs = latent
        if self.crf:
            shapes |= crf_shapes(outputs)
        if not self.tied:
            shapes["output.weight"] = (outputs, inputs)
        if self.bias:
            shapes["output.bias"] = (outputs,)
        if task == "pair" and self.pooling == "attention":
            latent = self.latent_size or width
            for side in range(2):
                shapes[f"output.pool.{side}.weight"] = (latent, width)
                shapes[f"output.pool.{side}.bias"] = (latent,)
                shapes[f"output.pool.{side}.score"] = (latent,)
        return shapes

    def features(self, width: int) -> int:
        """Return the number of features of a pair, over a stack of `width`."""
        return width * (2 if self.combine == "concat" else 4)

    def states(self, task: str, width: int) -> list[tuple[str, tuple[int, ...]]]:
        """Return the pooling's state entries, name and shape; they are last in a stream's state."""
        if task == "pair" or self.attention_final:
            return []
        entries: list[tuple[str, tuple[int, ...]]] = []
        for _, name in self.running():
            entries += [(name, (width,)), (f"{name}.steps", (1,))]
        if self.pooling == "attention":
            entries = [("pool", (width,))]
            scores = ("weight", "largest", "previous", "steps")
            entries += [(f"pool.{name}", (1,)) for name in scores]
        return entries

    def running(self) -> list[tuple[Pooling, str]]:
        """Return the means and maxima that remember a stream, and the names of their entries."""
        kinds = [kind for kind in self.poolings if kind in ("mean", "max")]
        return [(kind, f"pool.{kind}" if len(kinds) > 1 else "pool") for kind in kinds]

    def pooled_width(self, task: str, rnn: StackConfig) -> int:
        """Return the width of what the head's layers read; raises ValueError."""
        if task == "pair":
            return self.features(rnn.output_size)
        final = sum(self.final_sizes(rnn))
        return sum(final if kind == "final" else rnn.output_size for kind in self.poolings)

    def final_sizes(self, rnn: StackConfig) -> list[int]:
        """Return the width of each entry of `final`; raises ValueError for an unknown one."""
        sizes = {name: shape[0] for name, shape in rnn.states() if len(shape) == 1}
        for name in self.final:
            if name not in sizes:
                raise ValueError(
                    f"final: the end state has no entry {name[:40]}; it has {', '.join(sizes)}"
                )
        return [sizes[name] for name in self.final]

    def check(
        self,
        task: str,
        outputs: int | None,
        rnn: StackConfig,
        embedding: EmbeddingConfig,
        embedding_width: int,
    ) -> None:
        """Raise ValueError unless this head fits the network."""
        self._check_pooling(task, rnn)
        if self.activation != "softmax" and task not in ("classify", "pair", "tag"):
            raise ValueError(f"activation is for tasks with labels, not for task {task}")
        if self.output_layers and output_width(self.output_layers, outputs or 0) != outputs:
            raise ValueError("output_layers must keep the number of outputs")
        if self.output_layers and task != "regress":
            raise ValueError(f"output_layers is for task regress only, not for task {task}")
        if (self.adaptive or self.experts or self.tied) and task != "generate":
            raise ValueError(
                f"size, cutoffs, experts and tied are for task generate only, not for task {task}"
            )
        if self.crf and task != "tag":
            raise ValueError(f"crf is for task tag only, not for task {task}")
        if not self.crf and self.crf_window != HeadConfig.model_fields["crf_window"].default:
            raise ValueError("crf_window is for a head with crf")
        if self.crf and (outputs or 0) > MAX_LABELS:
            raise ValueError(f"a CRF may have {MAX_LABELS} labels; this one has {outputs:,}")
        if self.adaptive and self.experts:
            raise ValueError("a head has either clusters (size) or experts, not both")
        if outputs is not None and self.experts * outputs > _MIXED_SCORES:
            raise ValueError(
                f"{self.experts:,} experts of {outputs:,} words have {self.experts * outputs:,} "
                f"scores in each step; the limit is {_MIXED_SCORES:,}"
            )
        self.check_vocabulary(outputs)
        width = output_width(self.layers, self.pooled_width(task, rnn))
        if not self.tied:
            return
        if self.adaptive or embedding.adaptive:
            if outputs is None or self.clusters(outputs) != embedding.clusters(outputs):
                raise ValueError("a tied head must have its embedding's cutoffs, size and divide")
        elif (reads := (self.latent_size or width) if self.experts else width) != embedding_width:
            raise ValueError(
                f"a tied head of width {reads} needs an embedding of that width, not "
                f"{embedding_width}"
            )

    def _attention_width(self, width: int) -> int:
        return 2 * width if self.attention_final else width

    def _check_pooling(self, task: str, rnn: StackConfig) -> None:
        if self.pooling != "last" and task not in ("classify", "pair", "regress"):
            raise ValueError(f"task {task} has no pooling: it returns a result for every step")
        if rnn.pools and self.pooling != "last":
            raise ValueError(
                f"{rnn.family} layers keep the largest value of each filter themselves: omit "
                f"pooling, instead of {' and '.join(self.poolings)}"
            )
        if task == "pair" and ("final" in self.poolings or len(self.poolings) > 1):
            raise ValueError(
                "pooling final, and several poolings, are not for task pair: use last, mean, max "
                "or attention"
            )
        if len(set(self.poolings)) < len(self.poolings):
            raise ValueError(f"pooling names one of {', '.join(self.poolings)} twice")
        if ("final" in self.poolings) is not bool(self.final):
            raise ValueError("pooling final and the list `final` of its entries go together")
        attends = self.pooling == "attention" and task != "pair"
        if attends is not bool(self.attention):
            raise ValueError("pooling attention and the list `attention` of its layers go together")
        inputs = self._attention_width(rnn.output_size)
        if attends and (width := output_width(self.attention, inputs)) != 1:
            raise ValueError(f"attention: its layers must give one score, not {width}")
        if self.attention_final and not attends:
            raise ValueError("attention_final is for pooling attention with its own layers")
        if self.attention_final and rnn.output_size != rnn.layer_output(rnn.num_layers - 1):
            raise ValueError("attention_final is not for a stack that concatenates its layers")
        if self.combine != "concat" and task != "pair":
            raise ValueError(f"combine is for task pair only, not for task {task}")
