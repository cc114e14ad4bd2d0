"""Counts and times of steps, by their size: what KServe's statistics tell."""

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """How often something happened, and how long it took in all."""

    count: int = 0
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.seconds += seconds


class StepTallies:
    """What KServe's statistics tell of a model's steps, which no histogram could.

    Steps count by size in groups that end at a power of two: to tell each size would take long.
    """

    def __init__(self) -> None:
        self.queue = Tally()
        self._by_size: dict[int, Tally] = {}

    def step(self, sequences: int, seconds: float) -> None:
        most = 1 << (sequences - 1).bit_length()
        self._by_size.setdefault(most, Tally()).add(seconds)

    def read(self) -> tuple[Tally, dict[int, Tally]]:
        """The waits for a first step, and the steps by the most sequences of their group."""
        return self.queue, dict(self._by_size)


_steps: dict[str, StepTallies] = {}


def steps_of(model_name: str) -> StepTallies:
    """The tallies of a model in this process."""
    return _steps.setdefault(model_name, StepTallies())
