"""Limit the rows of a step to bound its time, because new requests wait for its end.

The model: a step takes a fixed time, plus a time for each of its rows. Both are learned. Twice the
time of one row is reached at 16 rows on a CPU, and at thousands of rows on a GPU.
"""

from math import inf

_TARGET_SECONDS = 0.05  # target for the longest step, on a device that nothing else uses
# Target for a step that other tenants may wait for. What a step takes by itself is at most 1/8 of
# it, so its rows hardly take longer than those of a longest step.
_SHORT_SECONDS, _OWN_TIMES = 0.01, 8
_SMALL_ROWS = 8  # a step with at most 8 rows takes hardly longer than a step of one row
_FASTER_WEIGHT = 0.3  # weight of a measurement below the average
_MAX_GROWTH = 1.03  # factor by which one measurement above the average may raise it
_MIN_ROWS_SHARE = 1 / 16  # least share of a large step's time that counts as its rows' time
_SLOW_STEPS = 4  # steps in a row that were slower than the target, and lower the bound
_VERY_SLOW = 10  # times the target: one such step lowers the bound


class StepTime:
    """Learns step times. Fast steps count more, because slow ones waited for a processor.

    max_rows: rows of the largest step. min_rows: rows that a step may have on any device, however
    slow. target_seconds: for the longest step, on a device that nothing else uses. first_rows: of
    the first step, before any was measured; None: `max_rows`.
    """

    def __init__(
        self,
        max_rows: int,
        min_rows: int,
        target_seconds: float = _TARGET_SECONDS,
        first_rows: int | None = None,
    ) -> None:
        self._max_rows, self._min_rows = max_rows, min_rows
        self._target_seconds = target_seconds
        self._row_seconds = self._own_seconds = 0.0
        self._bound = min(max_rows, first_rows or max_rows)
        self._slow_steps = self._slow_rows = 0  # slow steps in a row, and the rows of the last

    @property
    def rows(self) -> int:
        """Rows that the next step may have."""
        return self._rows_within(self._target_seconds)

    @property
    def short_rows(self) -> int:
        """Rows that the next step may have if other tenants may wait for its end."""
        short = max(_SHORT_SECONDS, _OWN_TIMES * self._own_seconds)
        return self._rows_within(min(self._target_seconds, short))

    def _rows_within(self, seconds: float) -> int:
        if self._own_seconds + self._row_seconds * self._bound <= seconds:
            return self._bound
        if not self._row_seconds:
            return self._min_rows
        rows = int((seconds - self._own_seconds) / self._row_seconds)
        return min(self._bound, max(self._min_rows, rows))

    def shared(self, parts: int, rows: int) -> int:
        """Rows of a step that takes `parts` times as long as a step of `rows` rows."""
        if not self._row_seconds:
            return self._max_rows
        extra_rows = (parts - 1) * self._own_seconds / self._row_seconds
        return int(min(self._max_rows, parts * rows + extra_rows))

    def seconds(self, rows: int) -> float:
        """The time of a step of `rows` rows; 0 before any was measured."""
        return self._own_seconds + self._row_seconds * rows

    def steps_within(self, seconds: float, rows: int) -> float:
        """How many steps of `rows` rows take `seconds`; infinite before any was measured."""
        step = self.seconds(rows)
        return seconds / step if step else inf

    def learn(self, rows: int, tokens: int, seconds: float) -> None:
        """Record that a step of `rows` rows took `seconds` for `tokens` tokens in all."""
        step = seconds * rows / tokens
        self._bind(rows, step)
        if rows <= _SMALL_ROWS:
            own = max(0.0, step - rows * self._row_seconds)
            self._own_seconds = _updated(self._own_seconds, own)
        elif rows >= 2 * _SMALL_ROWS:
            self._own_seconds = min(self._own_seconds, step)  # the first step may have been slow
            of_rows = max(step - self._own_seconds, _MIN_ROWS_SHARE * step)
            self._row_seconds = _updated(self._row_seconds, of_rows / rows)

    def _bind(self, rows: int, step: float) -> None:
        """Bound the rows by the steps measured: what was learned of small ones may not hold."""
        if step <= self._target_seconds:
            if rows >= self._slow_rows:  # fewer rows say nothing about so many
                self._slow_steps = 0
            self._bound = max(self._bound, min(self._max_rows, 2 * rows))
        elif self._min_rows < rows <= self._bound:
            self._slow_steps, self._slow_rows = self._slow_steps + 1, rows
            if self._slow_steps == _SLOW_STEPS or step > _VERY_SLOW * self._target_seconds:
                self._slow_steps = self._slow_rows = 0
                within_target = int(rows * self._target_seconds / step)
                self._bound = max(self._min_rows, min(rows // 2, within_target))


def _updated(average: float, newest: float) -> float:
    if not average:
        return newest
    if newest > average:
        return min(newest, _MAX_GROWTH * average)
    return average + _FASTER_WEIGHT * (newest - average)
