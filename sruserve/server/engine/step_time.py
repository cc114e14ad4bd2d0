"""How many streams may decode in one step: as many as it takes a bounded time for."""

_SECONDS = 0.1  # that a step of decoding should take at most: whoever is new waits for it
_FEWEST = 64  # however slow the device is
_NEWEST = 0.3  # what the last step counts among those before


class StepTime:
    """Learns from steps what a stream in them takes.

    most: streams of the largest step.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_a_stream = 0.0  # seconds

    @property
    def streams(self) -> int:
        """Streams that the next step may have."""
        if self._of_a_stream * self._most <= _SECONDS:
            return self._most
        return min(self._most, max(_FEWEST, int(_SECONDS / self._of_a_stream)))

    def learn(self, streams: int, steps: int, seconds: float) -> None:
        """So many streams took so long for a number of steps; few of them say little."""
        if streams >= _FEWEST:
            now = seconds / steps / streams
            self._of_a_stream += _NEWEST * (now - self._of_a_stream)
