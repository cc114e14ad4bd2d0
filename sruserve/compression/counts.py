"""Frequencies that are counted while symbols are coded, alike in encoder and decoder."""

from itertools import accumulate

_INCREMENT = (
    2  # beside a first count of 1: half a symbol each, after Krichevsky and Trofimov (1981)
)
_MAX_TOTAL = 1 << 13  # then all counts are halved, so that later symbols count more


class Counts:
    """Counts of `symbols` symbols."""

    def __init__(self, symbols: int) -> None:
        self._counts, self.total = [1] * symbols, symbols

    def interval(self, symbol: int) -> tuple[int, int, int]:
        """Return the counts before a symbol, its own, and all together."""
        return sum(self._counts[:symbol]), self._counts[symbol], self.total

    def find(self, target: int) -> int:
        """Return the symbol whose counts include `target`, which is below `total`."""
        ends = accumulate(self._counts)
        return next(symbol for symbol, end in enumerate(ends) if target < end)

    def add(self, symbol: int) -> None:
        """Count a symbol."""
        self._counts[symbol] += _INCREMENT
        self.total += _INCREMENT
        if self.total > _MAX_TOTAL:
            self._counts = [(count + 1) // 2 for count in self._counts]
            self.total = sum(self._counts)
