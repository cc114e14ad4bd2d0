"""The ragged batch: sequences packed end to end, each with the state rows it reads and writes."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RaggedBatch:
    """Which packed rows belong to which sequence, and where each sequence's state lives.

    Sequence `b` is rows `offsets[b]:offsets[b + 1]` of every packed tensor.

    offsets: (sequences + 1), int64, starting at 0 and never falling.
    states: (rows, width), float32, contiguous: the pool; one row holds all layers of one stream.
    source: (sequences), int64: the row with each sequence's start state; -1 starts from zeros.
    target: (sequences), int64: the row that receives the end state; -1 drops it. It may equal
        the sequence's source. Otherwise no two sequences may read or write the same row.
    host_offsets: `offsets` on the CPU, where that is at hand.
    """

    offsets: Tensor
    states: Tensor
    source: Tensor
    target: Tensor
    host_offsets: Tensor | None = None

    def offsets_on_host(self) -> Tensor:
        """Return `offsets` on the CPU; waits for a GPU that alone has them."""
        return self.offsets.cpu() if self.host_offsets is None else self.host_offsets

    @property
    def sequences(self) -> int:
        return self.source.shape[0]

    def pieces(self, rows: int) -> Iterator[tuple[int, int, "RaggedBatch"]]:
        """Yield (first row, end row, batch) for runs of at most `rows` packed rows, in order.

        A sequence that crosses a border continues from its own target row. Raises ValueError if it
        has none: it would begin anew.
        """
        offsets: list[int] = self.offsets.tolist()
        total = offsets[-1]
        if total <= rows:
            yield 0, total, self
            return
        first = 0  # the sequence that holds row `start`
        for start in range(0, total, rows):
            end = min(start + rows, total)
            while start and offsets[first + 1] <= start:
                first += 1
            last = first
            # An empty sequence on the border belongs to the piece before it.
            while last + 1 < self.sequences and (
                offsets[last + 1] < end or offsets[last + 2] == end
            ):
                last += 1
            source = self.source[first : last + 1]
            if offsets[first] < start:
                if self.target[first] < 0:
                    raise ValueError("ragged: a sequence without a target row cannot be cut")
                source = source.clone()
                source[0] = self.target[first]
            piece = (self.offsets[first : last + 2] - start).clamp_(0, end - start)
            yield start, end, RaggedBatch(piece, self.states, source, self.target[first : last + 1])


def single(states: Tensor, length: int) -> RaggedBatch:
    """Return a batch of one sequence of `length` rows that advances row 0 of `states` in place."""
    zero = torch.zeros(1, dtype=torch.int64)
    return RaggedBatch(torch.tensor([0, length]), states, zero, zero)
