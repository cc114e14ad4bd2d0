"""How many streams may decode in one step: as many as it takes a bounded time for."""

_SECONDS = 0.1  # that a step of decoding should take at most: whoever is new waits for it
_FEWEST = 64  # however slow the device is
_NEWEST = 0.3  # what the last step counts among those before


class StepTime:
    """Learns from steps what a row of them takes.

    most: rows of the largest step.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._row_seconds = 0.0

    @property
    def streams(self) -> int:
        """Streams that the next step may have."""
        if self._row_seconds * self._most <= _SECONDS:
            return self._most
        return min(self._most, max(_FEWEST, int(_SECONDS / self._row_seconds)))

    def learn(self, rows: int, tokens: int, seconds: float) -> None:
        """Steps of so many rows took so long for `tokens` in all; small ones say little."""
        if rows >= _FEWEST:
            self._row_seconds += _NEWEST * (seconds / tokens - self._row_seconds)
