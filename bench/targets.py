"""What a figure has to be."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """At `least`, at `most`, or both. With neither, the figure is for the reader to judge."""

    least: float | None = None
    most: float | None = None

    def __str__(self) -> str:
        bounds = [(self.least, "≥"), (self.most, "≤")]
        return " and ".join(f"{sign} {bound:g}" for bound, sign in bounds if bound is not None)

    def met(self, value: float) -> bool | None:
        """Whether `value` is there; None where nothing was asked for. NaN never is."""
        if self.least is None and self.most is None:
            return None
        above = self.least is None or value >= self.least
        return above and (self.most is None or value <= self.most)


TOLD = Target()


@dataclass(frozen=True, slots=True)
class Check:
    """A figure beside its target."""

    what: str
    value: float
    unit: str
    target: Target

    def summary(self) -> dict[str, Any]:
        """What is kept of it."""
        return {
            "what": self.what,
            "value": float(f"{self.value:.5g}"),
            "unit": self.unit,
            "target": str(self.target),
            "met": self.target.met(self.value),
        }
