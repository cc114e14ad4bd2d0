"""Columns of state rows, gathered and stored in one step of many streams, without a wait."""

from torch import Tensor

from sruserve.kernels.cell import Cell, Kind
from sruserve.kernels.dispatch import scan
from sruserve.kernels.layer import one_step_each

_SHIFT = Cell(kind=Kind.SHIFT, blocks=1)


def gather_columns(states: Tensor, source: Tensor, column: int, width: int) -> Tensor:
    """Read columns of many rows: (streams, width), float32; zeros where `source` is -1.

    states: (rows, state width), float32. source: (streams), int64.
    """
    rows = states[:, column : column + width].index_select(0, source.clamp(min=0))
    return rows.where((source >= 0).unsqueeze(1), 0.0)


def store_columns(values: Tensor, states: Tensor, target: Tensor, column: int) -> None:
    """Write values (streams, width) to columns of many rows, and nothing where `target` is -1.

    A SHIFT of one step stores its input, and knows rows that are not there: a store by index in
    torch would have to wait for the number of those that are.
    """
    batch = one_step_each(states, target, target)
    scan(values.float().contiguous(), None, None, None, batch, column, _SHIFT)
