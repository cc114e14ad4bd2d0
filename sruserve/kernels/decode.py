"""One decoding step of a whole network on a GPU: consume tokens, advance states, pick tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sruserve.kernels.layer import StepLayer
from sruserve.kernels.linear import LinearOp
from sruserve.kernels.merged import MergedLayers
from sruserve.kernels.slots import Slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A language model as tensors, and the pool that holds its streams' states.

    embedding: (vocabulary, in).
    head: (width) -> (vocabulary).
    states: (rows, state width), float32.
    input_projection: (in) -> (first layer's in); None without one.
    merged: the layers in fewer launches for few streams, or None.
    """

    embedding: Tensor
    layers: Sequence[StepLayer]
    head: LinearOp
    states: Tensor
    input_projection: LinearOp | None = None
    merged: MergedLayers | None = None

    def logits(self, tokens: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Consume a token of every stream; returns logits (streams, vocabulary), float32.

        tokens, source, target: (streams), int64; source and target as in `RaggedBatch`.
        """
        x: Tensor = self.embedding
        index: Tensor | None = tokens
        if self.input_projection is not None:
            x, index = self.input_projection.step(x, tokens), None
        if self.merged is not None and self.merged.takes(len(source)):
            x = self.merged.step(x, self.states, source, target, index)
        else:
            for layer in self.layers:
                x, index = layer.step(x, self.states, source, target, index), None
        return self.head.step(x, dtype=torch.float32)

    def step(self, slots: Slots) -> None:
        """Consume the slots' tokens and pick the next ones; `GraphedDecode` captures this."""
        self.pick(self.logits(slots.tokens, slots.source, slots.target), slots)

    def pick(self, logits: Tensor, slots: Slots) -> None:
        """Pick a token for every slot from logits (slots, vocabulary), float32; updates `slots`."""
        from sruserve.kernels.triton.sample import triton_sample

        triton_sample(logits, slots)
