"""How large a step may be: whoever is new waits for its end, so its time is bounded.

A step takes a time of its own, and one for each of its rows. Both are learned: what takes twice as
long as one row is 16 rows of a CPU, and thousands of a GPU.
"""

_SECONDS = 0.05  # that a step should take at most, where nobody else uses the device
_FEW = 8  # rows of a step that takes hardly longer than one row does
_FASTER = 0.3  # what a step counts that took less than was expected
_SLOWER = 1.03  # how much more is expected after a step that took more
_SURELY = 1 / 16  # of a large step's time is that of its rows
_IN_A_ROW = 4  # steps that take too long, although they should not: then they are halved


class StepTime:
    """Learns from steps what they take, rather from the fast ones: others waited for a processor.

    most: rows of the largest step. fewest: rows that a step may have however slow the device is.
    """

    def __init__(self, most: int, fewest: int) -> None:
        self._most, self._fewest = most, fewest
        self._row_seconds = self._own_seconds = 0.0
        self._bound, self._too_long = most, 0

    @property
    def rows(self) -> int:
        """Rows that the next step may have."""
        if self._own_seconds + self._row_seconds * self._bound <= _SECONDS:
            return self._bound
        if not self._row_seconds:
            return self._fewest
        rows = int((_SECONDS - self._own_seconds) / self._row_seconds)
        return min(self._bound, max(self._fewest, rows))

    def shared(self, parts: int, rows: int) -> int:
        """Rows of a step that takes `parts` times as long as one of `rows` rows."""
        if not self._row_seconds:
            return self._most
        beside = (parts - 1) * self._own_seconds / self._row_seconds
        return int(min(self._most, parts * rows + beside))

    def learn(self, rows: int, tokens: int, seconds: float) -> None:
        """A step of so many rows took so long for `tokens` in all."""
        step = seconds * rows / tokens
        self._bind(rows, step)
        if rows <= _FEW:
            own = max(0.0, step - rows * self._row_seconds)
            self._own_seconds = _moved(self._own_seconds, own)
        elif rows >= 2 * _FEW:
            self._own_seconds = min(self._own_seconds, step)  # the first step may have been slow
            of_rows = max(step - self._own_seconds, _SURELY * step)
            self._row_seconds = _moved(self._row_seconds, of_rows / rows)

    def _bind(self, rows: int, step: float) -> None:
        """Take back what was expected of larger steps than those that taught it."""
        if step <= _SECONDS:
            self._too_long = 0
            self._bound = max(self._bound, min(self._most, 2 * rows))
        elif self._fewest < rows <= self._bound:
            self._too_long += 1
            if self._too_long == _IN_A_ROW:
                self._too_long = 0
                self._bound = max(self._fewest, rows // 2)


def _moved(average: float, newest: float) -> float:
    if not average:
        return newest
    if newest > average:
        return min(newest, _SLOWER * average)
    return average + _FASTER * (newest - average)
