"""What an encoder made of sources: all that a decoder reads of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Memory:
    """The encoded sources of one request, or of several.

    rows: for each source (length, width), float32, contiguous: what attention reads of each
        position, such as the keys and values of all layers.
    states: (sources, state_width), float32: the state in which a hypothesis begins.
    """

    rows: tuple[Tensor, ...]
    states: Tensor

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def longest(self) -> int:
        """Number of positions of the longest source."""
        return max((len(rows) for rows in self.rows), default=0)

    @property
    def lengths(self) -> Tensor:
        """Number of positions of each source, (sources), int64."""
        return torch.tensor([len(rows) for rows in self.rows])

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(rows.nbytes for rows in self.rows) + self.states.nbytes

    def __getitem__(self, source: int) -> "Memory":
        """Return one source alone, in memory of its own."""
        return Memory((self.rows[source].clone(),), self.states[source : source + 1].clone())

    @staticmethod
    def join(memories: Sequence["Memory"]) -> "Memory":
        """Return all sources, in order; only their states are copied."""
        rows = tuple(rows for memory in memories for rows in memory.rows)
        return Memory(rows, torch.cat([memory.states for memory in memories]))
