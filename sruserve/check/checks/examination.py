"""Shared by all checks: the server, its inputs, how many requests run at once, the tolerance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from sruserve.check.findings import Comparisons, Finding
from sruserve.check.results import Result
from sruserve.check.samples import Sample
from sruserve.check.server import Ready, Server
from sruserve.check.together import at_once

T = TypeVar("T")


@dataclass(frozen=True)
class Examination:
    """One run of all checks."""

    server: Server
    samples: tuple[Sample, ...]
    concurrency: int
    tolerance: float

    def comparisons(self) -> Comparisons:
        return Comparisons(self.tolerance)

    def by_length(self) -> list[Sample]:
        """All inputs, the shortest first."""
        return sorted(self.samples, key=lambda sample: sample.size)

    def few(self, count: int) -> list[Sample]:
        """Inputs that can be cut, the shortest and the longest among them."""
        ordered = [sample for sample in self.by_length() if sample.size > 1]
        if len(ordered) <= count:
            return ordered
        step = (len(ordered) - 1) / (count - 1)
        return [ordered[round(i * step)] for i in range(count)]

    def at_once(self, jobs: Sequence[Callable[[Ready], T]]) -> list[T]:
        return at_once(jobs, self.concurrency)

    def ask_at_once(self, samples: list[Sample]) -> list[Result]:
        """The results of inputs whose requests begin together."""
        return self.at_once([partial(self.server.ask, sample) for sample in samples])


class Check(Protocol):
    """One question.

    max_requests: the bound that is announced for `samples` inputs of one server.
    """

    name: str
    question: str

    def max_requests(self, samples: int) -> int: ...

    def run(self, examination: Examination) -> Finding: ...
