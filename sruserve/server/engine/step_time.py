"""How large a step may be: whoever is new waits for its end, so its time is bounded."""

_SECONDS = 0.1  # that a step should take at most
_NEWEST = 0.3  # what the last step counts among those before


class StepTime:
    """Learns from steps what a row of them takes.

    most: rows of the largest step. fewest: rows of the smallest that is large, however slow the
        device is; smaller ones say little.
    """

    def __init__(self, most: int, fewest: int) -> None:
        self._most, self._fewest = most, fewest
        self._row_seconds = 0.0

    @property
    def rows(self) -> int:
        """Rows that the next step may have."""
        if self._row_seconds * self._most <= _SECONDS:
            return self._most
        return min(self._most, max(self._fewest, int(_SECONDS / self._row_seconds)))

    def learn(self, rows: int, tokens: int, seconds: float) -> None:
        """A step of so many rows took so long for `tokens` in all."""
        if rows >= self._fewest:
            self._row_seconds += _NEWEST * (seconds / tokens - self._row_seconds)
