"""What an element-wise recurrence is: all of it that is fixed when a model is loaded."""

from dataclasses import dataclass
from enum import IntEnum


class Kind(IntEnum):
    """The recurrence; `reference_scan` has each as an equation."""

    SRU = 0
    LRN = 1
    QRNN = 2
    SUM = 3
    MAX = 4
    SHIFT = 5


class Activation(IntEnum):
    """The g of SRU and LRN."""

    IDENTITY = 0
    TANH = 1
    RELU = 2
    SELU = 3


_BLOCKS = {
    Kind.SRU: (3, 4),
    Kind.LRN: (3, 4),
    Kind.QRNN: (2, 3, 4),
    Kind.SUM: (1,),
    Kind.MAX: (2,),
    Kind.SHIFT: (1,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One element-wise recurrence: its kind and the switches of its equations.

    blocks: planes of u. SRU: candidate, forget, reset, and with 4 the highway input. LRN: key,
        query, value, and with 4 the output gate. QRNN: Z, F, from 3 the output gate, and with 4
        the highway input. MAX: the value, and the number of values before it (0 begins anew).
    activation: g of SRU and LRN.
    updated_reset: SRU's reset gate reads the new c (Algorithm 1 as printed in the paper) instead
        of the previous one (eq. 3, and every release).
    scale: alpha, the factor on the residual of SRU and QRNN.
    zoneout: the part of QRNN's forget gate that is dropped.

    Raises ValueError for blocks that the kind does not have.
    """

    kind: Kind = Kind.SRU
    blocks: int = 3
    activation: Activation = Activation.IDENTITY
    updated_reset: bool = False
    scale: float = 1.0
    zoneout: float = 0.0

    def __post_init__(self) -> None:
        if self.blocks not in _BLOCKS[self.kind]:
            known = " or ".join(map(str, _BLOCKS[self.kind]))
            raise ValueError(f"{self.kind.name} has {known} blocks, not {self.blocks}")

    @property
    def takes_residual(self) -> bool:
        """Whether its highway may read the layer's input instead of a plane of u."""
        return self.kind in (Kind.SRU, Kind.QRNN) and self.blocks == 3

    @property
    def gated_by_state(self) -> bool:
        """Whether its gates take `weight_c` and `bias`, (2, width) each."""
        return self.kind is Kind.SRU

    @property
    def keep(self) -> float:
        """The part of QRNN's forget gate that zoneout leaves."""
        return 1.0 - self.zoneout
