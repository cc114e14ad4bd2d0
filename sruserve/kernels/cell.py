"""The fixed description of an element-wise recurrence: its kind and its switches."""

from dataclasses import dataclass, field
from enum import IntEnum


class Kind(IntEnum):
    """The recurrence; `reference_scan` gives the equation of each."""

    SRU = 0
    LRN = 1
    QRNN = 2
    SUM = 3
    MAX = 4
    SHIFT = 5
    DECAY = 6


class Activation(IntEnum):
    """The activation function g of SRU and LRN."""

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
    Kind.DECAY: (2,),
}
# The default of each switch, and the kinds whose equations contain the switch.
_SWITCHES: dict[str, tuple[float, tuple[Kind, ...]]] = {
    "activation": (Activation.IDENTITY, (Kind.SRU, Kind.LRN)),
    "updated_reset": (False, (Kind.SRU,)),
    "scale": (1.0, (Kind.SRU, Kind.QRNN)),
    "zoneout": (0.0, (Kind.QRNN,)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One element-wise recurrence: its kind and the switches of its equations.

    blocks: number of planes of u. SRU: candidate, forget, reset, and with 4 the highway input.
        LRN: key, query, value, and with 4 the output gate. QRNN: Z, F, with 3 or more the output
        gate, and with 4 the highway input. MAX: the value, and the number of values before it
        (0 starts a new maximum). DECAY: the value, and the factor on the sum before it.
    activation: g of SRU and LRN.
    updated_reset: SRU's reset gate reads the new c (Algorithm 1 as printed in the paper) instead
        of the previous one (eq. 3, and every release).
    scale: alpha, the factor on the residual of SRU and QRNN.
    zoneout: fraction of QRNN's forget gate that is dropped.

    takes_residual: whether the highway may read the layer's input instead of a plane of u.
    gated_by_state: whether the gates take `weight_c` and `bias`, (2, width) each.
    keep: fraction of QRNN's forget gate that zoneout leaves.

    Raises ValueError if the kind does not have the number of blocks or a switch.
    """

    kind: Kind = Kind.SRU
    blocks: int = 3
    activation: Activation = Activation.IDENTITY
    updated_reset: bool = False
    scale: float = 1.0
    zoneout: float = 0.0
    # Computed once, because every kernel call reads them.
    takes_residual: bool = field(init=False, repr=False, compare=False)
    gated_by_state: bool = field(init=False, repr=False, compare=False)
    keep: float = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.blocks not in _BLOCKS[self.kind]:
            known = " or ".join(map(str, _BLOCKS[self.kind]))
            raise ValueError(f"{self.kind.name} cells have {known} blocks, not {self.blocks}")
        for switch, (default, kinds) in _SWITCHES.items():
            if getattr(self, switch) != default and self.kind not in kinds:
                names = " and ".join(kind.name for kind in kinds)
                raise ValueError(f"{self.kind.name} cells have no {switch}: only {names} cells do")
        derived = {
            "takes_residual": self.kind in (Kind.SRU, Kind.QRNN) and self.blocks == 3,
            "gated_by_state": self.kind is Kind.SRU,
            "keep": 1.0 - self.zoneout,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def check(self, residual: object | None, weight_c: object | None, bias: object | None) -> None:
        """Raise ValueError unless a call passes exactly the tensors that this recurrence reads."""
        gated = self.gated_by_state
        if (weight_c is not None) is not gated or (bias is not None) is not gated:
            needs = "need weight_c and bias" if gated else "take neither weight_c nor bias"
            raise ValueError(f"{self.kind.name} cells {needs}")
        if residual is not None and not self.takes_residual:
            raise ValueError(
                f"{self.kind.name} cells with {self.blocks} blocks take no residual: only SRU and "
                "QRNN cells with 3 blocks do"
            )
