"""Does company change a result? Each input alone, then in one request and at once with others."""

from collections.abc import Callable
from contextlib import suppress

from sruserve.check.checks.examination import Examination
from sruserve.check.errors import NotApplicable
from sruserve.check.findings import Comparisons, Failure, Finding
from sruserve.check.results import Result
from sruserve.check.samples import Sample

_ROUNDS = 3
_TRIES = 3  # of each pair that might be the smallest example

Together = Callable[[list[Sample]], list[Result]]


class Company:
    name = "company"
    question = "Is a result the same alone and among other requests?"

    def max_requests(self, samples: int) -> int:
        return (2 + _ROUNDS) * samples + 1 + _TRIES * 2 * 2

    def run(self, examination: Examination) -> Finding:
        server, samples = examination.server, examination.by_length()
        comparisons = examination.comparisons()
        alone = [server.ask(sample) for sample in samples]
        for sample, result in zip(samples, alone, strict=True):
            comparisons.add(result, server.ask(sample), f"{sample}, alone, twice", sample.size)
        if comparisons.failures:
            return comparisons.failed(
                "the same request alone gives different results: the server probably samples "
                "without a seed, or keeps something of earlier requests",
                "the same request alone gives results that differ by rounding: the server "
                "probably sums in an order that changes",
            )
        company = _Company(comparisons, samples, alone)
        with suppress(NotApplicable):  # requests that run at the same time remain
            company.compare("in one request", server.ask_in_one)
        for _ in range(_ROUNDS):
            company.compare("at the same time", examination.ask_at_once)
        if not comparisons.failures:
            return comparisons.passed(f"alone, and {' and '.join(company.ways)}")
        return company.explained()


class _Company:
    """The comparisons of results alone and in company, and what they have in common."""

    def __init__(
        self, comparisons: Comparisons, samples: list[Sample], alone: list[Result]
    ) -> None:
        self.ways: dict[str, Together] = {}
        self._comparisons, self._samples, self._alone = comparisons, samples, alone
        self._changed: list[tuple[int, str]] = []  # the input's index, and how it was sent

    def compare(self, how: str, together: Together) -> None:
        """Send all inputs together, and compare each result with that alone."""
        results = together(self._samples)
        self.ways[how] = together
        for i, result in enumerate(results):
            sample = self._samples[i]
            example = f"{sample} with {len(results) - 1} others {how}"
            if self._comparisons.add(self._alone[i], result, example, sample.size):
                self._changed.append((i, how))

    def explained(self) -> Finding:
        """The finding, with a pair of inputs as example if one shows the difference."""
        longest = len(self._samples) - 1
        cause = (
            "results depend on the batch: the server probably normalises over it, or mixes up "
            "its requests"
        )
        lengths_differ = self._samples[0].size < self._samples[longest].size
        if lengths_differ and all(i != longest for i, _ in self._changed):
            cause = (
                "results depend on the batch, and only the longest input keeps its own: the "
                "server probably pads inputs, and computes with the padding"
            )
        if any("text" in result.parts for result in self._alone):
            cause = (
                "texts depend on the batch: rounding that changes with its size probably tips "
                "close choices, or the server pads prompts"
            )
        rounding = (
            "results agree within rounding only: the server probably chooses kernels by the size "
            "of the batch; --tolerance 1e-5 allows that"
        )
        return self._comparisons.failed(cause, rounding, self._pair())

    def _pair(self) -> Failure | None:
        """The shortest input that changes beside one other."""
        i, how = min(self._changed)
        sample = self._samples[i]
        for other in (self._samples[-1], self._samples[0]):
            for _ in range(_TRIES if other is not sample else 0):
                result, _ = self.ways[how]([sample, other])
                example = f"{sample} with {other} {how}"
                if self._comparisons.add(self._alone[i], result, example, sample.size):
                    return self._comparisons.failures[-1]
        return None
