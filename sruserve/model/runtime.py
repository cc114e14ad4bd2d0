"""What computes a network over state rows: the compiled kernels, or another runtime."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.kernels.decode import Decoder
from sruserve.model.config import ModelConfig
from sruserve.model.heads.crf import LinearChain
from sruserve.model.state import StateLayout


class Runtime(Protocol):
    """A trained network, ready to run. `Network` documents each member.

    kernel: what computes it, for `inspect`. exactness: how exactly its results agree for other
        splits of an input and other batches. max_step_rows: the most rows that a caller may ask
        for at a time; None: any number.
    """

    config: ModelConfig
    layout: StateLayout
    dtype: torch.dtype
    device: torch.device
    weights: int
    piece_rows: int
    max_step_rows: int | None
    supports_streaming: bool
    crf: LinearChain | None

    @property
    def pooled_width(self) -> int | None: ...

    @property
    def activation(self) -> Callable[[Tensor], Tensor]: ...

    @property
    def kernel(self) -> str: ...

    @property
    def exactness(self) -> str: ...

    @property
    def state_size(self) -> int: ...

    @property
    def state_bytes(self) -> int: ...

    @property
    def not_streamable_because(self) -> str | None: ...

    def rows_at_once(self, rows: int, longest: int) -> int: ...

    def hidden(
        self, inputs: Tensor, batch: RaggedBatch, output_rows: Tensor | None = None
    ) -> Tensor: ...

    def outputs_of_layers(self, inputs: Tensor, batch: RaggedBatch) -> list[Tensor]: ...

    def logits(self, hidden: Tensor) -> Tensor: ...

    def log_probs(self, scores: Tensor) -> Tensor: ...

    def compare(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor: ...

    def decoder(self, states: Tensor) -> Decoder | None: ...

    def warm_up(self, before: Callable[[int], None] = ...) -> None: ...


class Streamable:
    """What every runtime says of the states of its streams."""

    config: ModelConfig
    layout: StateLayout
    crf: LinearChain | None
    piece_rows: int

    def rows_at_once(self, rows: int, longest: int) -> int:
        """See `Network.rows_at_once`."""
        del rows, longest
        return self.piece_rows

    @property
    def state_size(self) -> int:
        """The most numbers of a stream's state: its row, and the open paths of a CRF."""
        return self.layout.width + (0 if self.crf is None else self.crf.state_size)

    @property
    def state_bytes(self) -> int:
        """The most bytes of a stream's state."""
        return self.state_size * 4

    @property
    def not_streamable_because(self) -> str | None:
        """Why the network cannot stream, as a clause "it …"; None if it can."""
        return self.config.not_streamable_because
