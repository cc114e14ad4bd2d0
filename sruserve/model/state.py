"""The layout of a stream's state: one packed float32 row."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from sruserve.kernels.devices import CPU


@dataclass(frozen=True, slots=True)
class StateEntry:
    """One tensor of a stream's state: `shape` per stream, from column `offset` of its row."""

    name: str
    shape: tuple[int, ...]
    offset: int

    @property
    def size(self) -> int:
        return prod(self.shape)


class StateLayout:
    """The entries of a state row, in the order of their declaration by the cells.

    declared: name and shape of each entry.
    width: numbers in a row.
    """

    def __init__(self, declared: Iterable[tuple[str, tuple[int, ...]]]) -> None:
        entries, offset = [], 0
        for name, shape in declared:
            entries.append(StateEntry(name, shape, offset))
            offset += entries[-1].size
        self.entries: tuple[StateEntry, ...] = tuple(entries)
        self.width = offset

    def column(self, name: str) -> int:
        """Return the first column of an entry."""
        return next(entry.offset for entry in self.entries if entry.name == name)

    @property
    def nbytes(self) -> int:
        """Bytes of one stream's row."""
        return self.width * 4

    def allocate(self, rows: int, device: torch.device = CPU) -> Tensor:
        """Allocate zeroed states, (rows, width), float32."""
        return torch.zeros(rows, self.width, device=device)

    def pack(self, states: Mapping[str, Tensor]) -> Tensor:
        """Join {name: (streams, *shape)} into rows (streams, width), float32; needs every entry."""
        parts = [states[entry.name].float().reshape(-1, entry.size) for entry in self.entries]
        return torch.cat(parts, dim=1)

    def unpack(self, rows: Tensor) -> dict[str, Tensor]:
        """Split rows (streams, width) into {name: (streams, *shape)}, views where possible."""
        return {
            entry.name: rows[:, entry.offset : entry.offset + entry.size].reshape(-1, *entry.shape)
            for entry in self.entries
        }
