"""Counts and times of steps, by their size: what KServe's statistics tell."""

from dataclasses import dataclass


@dataclass(slots=True)
class DurationStat:
    """How often something happened, and how long it took in all."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds


class StepStatistics:
    """What KServe's statistics tell of a model's steps, which no histogram could.

    Steps count by size in groups that end at a power of two: to tell each size would take long.
    """

    def __init__(self) -> None:
        self.queue = DurationStat()
        self._by_size: dict[int, DurationStat] = {}

    def step(self, sequences: int, seconds: float) -> None:
        most = 1 << (sequences - 1).bit_length()
        self._by_size.setdefault(most, DurationStat()).add(seconds)

    def read(self) -> tuple[DurationStat, dict[int, DurationStat]]:
        """The waits for a first step, and the steps by the most sequences of their group."""
        return self.queue, dict(self._by_size)


_steps: dict[str, StepStatistics] = {}


def step_statistics(model_name: str) -> StepStatistics:
    """The tallies of a model in this process."""
    return _steps.setdefault(model_name, StepStatistics())
