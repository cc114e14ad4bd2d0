"""One-step decode of a whole network on a GPU: tokens in, states on, tokens out."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sruserve.kernels.layer import StepLayer
from sruserve.kernels.product import Multiply
from sruserve.kernels.slots import Slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A language model as tensors, and the pool that its streams' states are in.

    embedding: (vocabulary, in). entry: (in) -> (first layer's in), where there is one.
    head: (width) -> (vocabulary). states: (rows, state width), float32.
    """

    embedding: Tensor
    layers: Sequence[StepLayer]
    head: Multiply
    states: Tensor
    entry: Multiply | None = None

    def logits(self, tokens: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Consume a token of every stream; returns scores (streams, vocabulary), float32."""
        x: Tensor = self.embedding
        index: Tensor | None = tokens
        if self.entry is not None:
            x, index = self.entry.step(x, tokens), None
        for layer in self.layers:
            x, index = layer.step(x, self.states, source, target, index), None
        return self.head.step(x, dtype=torch.float32)

    def step(self, slots: Slots) -> None:
        """Consume the slots' tokens and pick the next ones: what `Bursts` captures."""
        self.pick(self.logits(slots.tokens, slots.source, slots.target), slots)

    def pick(self, logits: Tensor, slots: Slots) -> None:
        """Put a token for every slot, from scores (slots, vocabulary), in its places."""
        from sruserve.kernels.triton_sample import triton_sample

        triton_sample(logits, slots)
