"""How large a step may be: whoever is new waits for its end, so its time is bounded.

A step takes a time of its own, and one for each of its rows. Both are learned: what takes twice as
long as one row is 16 rows of a CPU, and thousands of a GPU.
"""

_SECONDS = 0.025  # that a step should take at most
_NEWEST = 0.3  # what the last step counts among those before


class StepTime:
    """Learns from steps what a row of them takes.

    most: rows of the largest step. fewest: rows of the smallest that is large, however slow the
        device is; smaller ones tell what a step takes beside its rows.
    """

    def __init__(self, most: int, fewest: int) -> None:
        self._most, self._fewest = most, fewest
        self._row_seconds = self._own_seconds = 0.0

    @property
    def rows(self) -> int:
        """Rows that the next step may have."""
        if self._row_seconds * self._most <= _SECONDS:
            return self._most
        return min(self._most, max(self._fewest, int(_SECONDS / self._row_seconds)))

    def shared(self, parts: int, rows: int) -> int:
        """Rows of a step that takes `parts` times as long as one of `rows` rows."""
        if not self._row_seconds:
            return self._most
        beside = (parts - 1) * self._own_seconds / self._row_seconds
        return int(min(self._most, parts * rows + beside))

    def learn(self, rows: int, tokens: int, seconds: float) -> None:
        """A step of so many rows took so long for `tokens` in all."""
        if rows >= self._fewest:
            self._row_seconds += _NEWEST * (seconds / tokens - self._row_seconds)
        else:
            own = max(0.0, seconds * rows / tokens - rows * self._row_seconds)
            self._own_seconds += _NEWEST * (own - self._own_seconds)
