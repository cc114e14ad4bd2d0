"""Repeated measurements: interleaved, reported as median and spread, compared round by round."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

_MIN_SECONDS = 0.02  # a round of a fast candidate has many calls, far above the clock's resolution
_MAX_CALLS = 10_000


@dataclass(frozen=True, slots=True)
class Samples:
    """The measured values of one candidate, one for each round, in `unit`."""

    values: tuple[float, ...]
    unit: str

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("no samples: measure at least one round")

    @property
    def median(self) -> float:
        return median(self.values)

    def quantile(self, share: float) -> float:
        """Return the quantile at `share` (0 to 1), linear between neighbours."""
        ordered = sorted(self.values)
        place = share * (len(ordered) - 1)
        low = int(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    def over(self, other: "Samples") -> "Samples":
        """Return the ratio of each round, in which a disturbance of a whole round cancels out."""
        pairs = zip(self.values, other.values, strict=True)
        return Samples(tuple(mine / theirs for mine, theirs in pairs), "x")

    def summary(self) -> dict[str, float | int | str]:
        """Return the figures to store, with 5 digits."""
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
    """Time one call of each candidate in turn, `rounds` times.

    unit, factor: the unit of the samples, and its number in a second. Every second round is in
    reverse order, so that a machine that slows down or speeds up favours no candidate. One round
    only shows that everything runs.
    """
    calls = dict.fromkeys(candidates, 1)
    if rounds > 1:
        calls = {name: _calls_in_a_round(call) for name, call in candidates.items()}
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds):
        for name in in_turn(list(candidates), turn):
            call, times = candidates[name], range(calls[name])
            begin = perf_counter()
            for _ in times:
                call()
            samples[name].append((perf_counter() - begin) / len(times) * factor)
    return {name: Samples(tuple(values), unit) for name, values in samples.items()}


def in_turn(names: Sequence[str], turn: int) -> Sequence[str]:
    """Return the order of a round: reversed in every second one."""
    return names if turn % 2 == 0 else names[::-1]


def _calls_in_a_round(call: Callable[[], object]) -> int:
    """Return the number of calls that take long enough to time; also warms the candidate up."""
    call()
    begin = perf_counter()
    call()
    return max(1, min(_MAX_CALLS, round(_MIN_SECONDS / (perf_counter() - begin))))
