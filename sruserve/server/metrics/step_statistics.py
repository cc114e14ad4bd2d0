"""Counts and durations of steps by their size, for KServe's statistics."""

from collections import defaultdict
from dataclasses import dataclass


@dataclass(slots=True)
class DurationStat:
    """The count and the total duration of an event."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.seconds += seconds


class StepStatistics:
    """The steps of a model for KServe's statistics, which a histogram could not provide.

    Steps are grouped by size up to the next power of two, because listing each size would be slow.
    """

    def __init__(self) -> None:
        self.queue = DurationStat()
        self._by_size: defaultdict[int, DurationStat] = defaultdict(DurationStat)

    def step(self, sequences: int, seconds: float) -> None:
        size = 1 << (sequences - 1).bit_length()
        self._by_size[size].add(seconds)

    def read(self) -> tuple[DurationStat, dict[int, DurationStat]]:
        """The waits for a first step, and the steps by the largest size of their group."""
        return self.queue, dict(self._by_size)


_steps: dict[str, StepStatistics] = {}


def step_statistics(model_name: str) -> StepStatistics:
    """The statistics of a model in this process."""
    return _steps.setdefault(model_name, StepStatistics())
