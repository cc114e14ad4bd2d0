"""Repeated measurements: taken in turns, told as median and spread, compared round by round."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

_LEAST_SECONDS = 0.02  # a round of a fast candidate is many calls, far above the clock's grain
_MOST_CALLS = 10_000


@dataclass(frozen=True, slots=True)
class Samples:
    """What one candidate took in each round, in `unit`."""

    values: tuple[float, ...]
    unit: str

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("no sample was taken")

    @property
    def median(self) -> float:
        return median(self.values)

    def quantile(self, share: float) -> float:
        """The value that a `share` of the samples is at or below, linear between neighbours."""
        ordered = sorted(self.values)
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    def over(self, other: "Samples") -> "Samples":
        """The ratio in each round: what disturbs a whole round falls out of it."""
        pairs = zip(self.values, other.values, strict=True)
        return Samples(tuple(mine / theirs for mine, theirs in pairs), "x")

    def summary(self) -> dict[str, float | int | str]:
        """What is kept of the samples."""
        figures = {
            "median": self.median,
            "min": min(self.values),
            "p10": self.quantile(0.1),
            "p90": self.quantile(0.9),
        }
        rounded = {name: float(f"{value:.5g}") for name, value in figures.items()}
        return {**rounded, "rounds": len(self.values), "unit": self.unit}


def interleave(
    candidates: Mapping[str, Callable[[], object]],
    rounds: int,
    unit: str = "ms",
    factor: float = 1e3,
) -> dict[str, Samples]:
    """Time one call of each candidate, in turns, `rounds` times.

    unit, factor: what seconds are told in. Every second round goes backwards, so that a machine
    which slows down or speeds up favours nobody. One round only shows that everything runs.
    """
    calls = dict.fromkeys(candidates, 1)
    if rounds > 1:
        calls = {name: _calls_in_a_round(call) for name, call in candidates.items()}
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds):
        for name in in_turn(list(candidates), turn):
            call, times = candidates[name], range(calls[name])
            begin = perf_counter()
            for _ in times:
                call()
            found[name].append((perf_counter() - begin) / len(times) * factor)
    return {name: Samples(tuple(values), unit) for name, values in found.items()}


def in_turn(names: Sequence[str], turn: int) -> Sequence[str]:
    """The order of a round."""
    return names if turn % 2 == 0 else names[::-1]


def _calls_in_a_round(call: Callable[[], object]) -> int:
    """How many calls take long enough to be timed; makes the candidate warm."""
    call()
    begin = perf_counter()
    call()
    return max(1, min(_MOST_CALLS, round(_LEAST_SECONDS / (perf_counter() - begin))))
