"""Pooling that reads end states: the final states of both directions, or of all layers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.kernels.devices import copy_to_device
from sruserve.model.state import StateLayout


class FinalState:
    """Some entries of each sequence's end state, side by side.

    names: the entries. layout: the entries of a state row.
    before: number of columns of other poolings before these; None: there is no other pooling.
    """

    def __init__(
        self, names: Sequence[str], layout: StateLayout, before: int | None = None
    ) -> None:
        sizes = {entry.name: entry.size for entry in layout.entries}
        columns = [layout.column(name) + torch.arange(sizes[name]) for name in names]
        self._layout, self._columns = layout, torch.cat(columns)
        self._before = before

    @property
    def stands_alone(self) -> bool:
        """Whether no other pooling is beside it."""
        return self._before is None

    def begin(self, batch: RaggedBatch) -> RaggedBatch:
        """Return the batch with state rows of its own, which keep every end state."""
        device = batch.states.device
        states = self._layout.allocate(batch.sequences, device)
        continued = (batch.source >= 0).nonzero()[:, 0]
        starts = copy_to_device(batch.source[continued], device)
        states[copy_to_device(continued, device)] = batch.states[starts]
        rows = torch.arange(batch.sequences)
        return RaggedBatch(batch.offsets, states, rows, rows)

    def end(
        self, batch: RaggedBatch, states: Tensor, output_rows: Tensor, others: Tensor
    ) -> Tensor:
        """Write the end states where the batch wants them, and pool.

        states: (sequences, layout.width): the end states. output_rows: rows of the batch, int64.
        others: (output rows, n): the rows of other poolings; not read if it stands alone.

        Returns the pooled row of each output row's sequence, (output rows, width), others' dtype.
        """
        kept = (batch.target >= 0).nonzero()[:, 0]
        targets = copy_to_device(batch.target[kept], states.device)
        batch.states[targets] = states[copy_to_device(kept, states.device)]
        sequences = torch.searchsorted(batch.offsets, output_rows, right=True) - 1
        rows = states.index_select(0, copy_to_device(sequences, states.device))
        rows = rows.index_select(1, copy_to_device(self._columns, states.device)).to(others.dtype)
        if self._before is None:
            return rows
        return torch.cat((others[:, : self._before], rows, others[:, self._before :]), 1)
