"""The entries that a part of a regular expression keeps on the stack of the library's matcher.

The matcher keeps an entry for each place that it may return to, and what a repetition has passed
stays until the match ends. Entries are counted as if each part left all that it can.
"""

from dataclasses import dataclass, replace
from math import inf


@dataclass(frozen=True)
class Cost:
    """The entries that a part of a pattern may leave.

    fixed: for a match of any length. each: besides, for each character of the match.
    around: besides, for each character of the text, because it looks beyond the match.
    longest: characters of the longest match. may_be_empty: whether it may match none.
    groups: those inside that the pattern refers to.
    """

    fixed: float = 0
    each: float = 0
    around: float = 0
    longest: float = 0
    may_be_empty: bool = True
    groups: int = 0

    def then(self, other: "Cost") -> "Cost":
        return Cost(
            self.fixed + other.fixed,
            max(self.each, other.each),
            self.around + other.around,
            self.longest + other.longest,
            self.may_be_empty and other.may_be_empty,
            self.groups + other.groups,
        )

    def or_else(self, other: "Cost") -> "Cost":
        return Cost(
            max(self.fixed, other.fixed),
            max(self.each, other.each),
            max(self.around, other.around),
            max(self.longest, other.longest),
            self.may_be_empty or other.may_be_empty,
            self.groups + other.groups,
        )

    def and_keeps(self, entries: float) -> "Cost":
        return replace(self, fixed=self.fixed + entries)

    def repeated(self, low: int, high: float, is_interval: bool) -> "Cost":
        each, fixed = self.each, 2.0 * is_interval
        keeps = self.fixed + 1 + (is_interval and low < high) + self.may_be_empty
        # A round without a character ends a repetition, unless it has changed a group's match.
        spins = 1 + 2 * self.groups
        if not self.may_be_empty:
            each += keeps
        elif high < inf:
            fixed += keeps * high
        else:
            each += keeps * spins
            fixed += keeps * (low + spins)
        return replace(
            self,
            fixed=fixed,
            each=each,
            around=self.around and self.around * high,
            longest=self.longest and self.longest * high,
            may_be_empty=self.may_be_empty or low == 0,
        )


CHARACTER = Cost(longest=1, may_be_empty=False)
FOLDED = Cost(fixed=1, longest=3, may_be_empty=False)  # `ß` is `ss`, too
ESCAPED = {
    "R": Cost(fixed=3, longest=2, may_be_empty=False),
    "X": Cost(fixed=3, each=2, longest=inf, may_be_empty=False),
    "K": Cost(fixed=1),
}
