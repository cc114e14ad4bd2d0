"""The fixed description of a gated layer's recurrence: its kind and its weights."""

from dataclasses import dataclass
from enum import IntEnum

from sruserve.kernels.panel_weight import PanelWeight


class GatedKind(IntEnum):
    """The recurrences whose step needs a matrix product; see `reference_gated_scan`."""

    LSTM = 0
    GRU = 1
    GRU_RESET_BEFORE = 2
    RNN_TANH = 3
    RNN_RELU = 4
    ATR_TANH = 5
    ATR_IDENTITY = 6

    @property
    def blocks(self) -> int:
        """Number of planes in the input's part of a step, each as wide as the layer."""
        return {GatedKind.LSTM: 4, GatedKind.GRU: 3, GatedKind.GRU_RESET_BEFORE: 3}.get(self, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedCell:
    """One direction of a gated layer: everything that is fixed when a model is loaded.

    first: the weight that multiplies h in each step.
    second: the candidate's weight of a GRU that resets before the product, or the projection of an
        LSTM with `proj_size`; None for the others.
    column: first column of h in a state row. cell_column: first column of an LSTM's c.
    backward: whether the direction runs from the last row to the first.
    """

    kind: GatedKind
    first: PanelWeight
    column: int
    second: PanelWeight | None = None
    cell_column: int = 0
    backward: bool = False

    @property
    def width(self) -> int:
        """Number of channels of each gate."""
        return self.first.outputs

    @property
    def outputs(self) -> int:
        """Number of channels of h."""
        return self.first.inputs
