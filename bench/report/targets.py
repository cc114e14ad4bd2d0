"""The targets of figures."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """A minimum, a maximum, or both. With neither, the figure is for the reader to judge."""

    minimum: float | None = None
    maximum: float | None = None

    def __str__(self) -> str:
        bounds = [(self.minimum, "≥"), (self.maximum, "≤")]
        return " and ".join(f"{sign} {bound:g}" for bound, sign in bounds if bound is not None)

    def met(self, value: float) -> bool | None:
        """Whether `value` meets the target; None without a target. NaN never meets one."""
        if self.minimum is None and self.maximum is None:
            return None
        above_minimum = self.minimum is None or value >= self.minimum
        return above_minimum and (self.maximum is None or value <= self.maximum)


NO_TARGET = Target()


@dataclass(frozen=True, slots=True)
class Check:
    """A figure with its target."""

    what: str
    value: float
    unit: str
    target: Target

    def summary(self) -> dict[str, Any]:
        """Return the fields to store."""
        return {
            "what": self.what,
            "value": float(f"{self.value:.5g}"),
            "unit": self.unit,
            "target": str(self.target),
            "met": self.target.met(self.value),
        }
