"""The outcome of a check: its comparisons, the smallest example of a difference, its cause."""

from dataclasses import dataclass, field
from enum import StrEnum

from sruserve.check.errors import NotApplicable
from sruserve.check.results import Difference, Result, compare


class Verdict(StrEnum):
    """The outcome of a check."""

    PASSES = "passes"
    FAILS = "fails"
    NOT_APPLICABLE = "not applicable"
    NO_ANSWER = "no answer"


@dataclass(frozen=True)
class Finding:
    """The result of a check. reason: one sentence; of a failure, its likely cause.

    example: the smallest request that showed it. difference: the first value that differed there.
    largest: the largest difference of two numbers. within_rounding: all differences are rounding.
    """

    verdict: Verdict
    reason: str
    example: str = ""
    difference: str = ""
    largest: float = 0.0
    within_rounding: bool = False
    comparisons: int = 0


@dataclass(frozen=True)
class Failure:
    """One comparison that differs. size: by which the smallest example is chosen."""

    size: int
    example: str
    difference: Difference


@dataclass
class Comparisons:
    """All comparisons of a check, under one tolerance."""

    tolerance: float
    count: int = 0
    largest: float = 0.0
    is_rounding: bool = True
    failures: list[Failure] = field(default_factory=list)

    def add(self, expected: Result, actual: Result, example: str, size: int) -> Difference | None:
        """Compare; return the difference if it exceeds the tolerance."""
        self.count += 1
        difference = compare(expected, actual)
        if difference is None:
            return None
        self.largest = max(self.largest, difference.largest)
        self.is_rounding = self.is_rounding and difference.is_rounding
        if difference.is_within(self.tolerance):
            return None
        self.failures.append(Failure(size, example, difference))
        return difference

    @property
    def smallest(self) -> Failure:
        return min(self.failures, key=lambda failure: failure.size)

    def passed(self, what: str) -> Finding:
        """The finding of a check without failures. what: the compared requests."""
        if not self.count:
            raise NotApplicable("no input is long enough to be cut")
        how = "equal bit for bit"
        if self.largest:
            kind = ", which is rounding" if self.is_rounding else ""
            how = f"largest difference {self.largest:.3g}{kind}, within the tolerance"
        return Finding(
            Verdict.PASSES,
            f"{what}: {self.count} comparisons, {how}",
            largest=self.largest,
            within_rounding=bool(self.largest) and self.is_rounding,
            comparisons=self.count,
        )

    def failed(self, cause: str, rounding: str = "", shown: Failure | None = None) -> Finding:
        """The finding of a check with failures.

        cause: the likely one. rounding: the likely one if all differences are rounding.
        shown: the example to show; by default the smallest one.
        """
        smallest = shown or self.smallest
        is_rounding = all(failure.difference.is_rounding for failure in self.failures)
        return Finding(
            Verdict.FAILS,
            rounding if is_rounding and rounding else cause,
            smallest.example,
            smallest.difference.where,
            self.largest,
            is_rounding,
            self.count,
        )
