"""Does another replica give the same? Whole inputs, and states that another replica continues."""

from sruserve.check.checks.examination import Examination
from sruserve.check.errors import NotApplicable, Refused
from sruserve.check.findings import Comparisons, Finding, Verdict
from sruserve.check.server import Tokens

_SAMPLES = 4
_HALVES = (0.5,)


class Replicas:
    name = "replica"
    question = "Does another replica give the same, and continue a state?"

    def max_requests(self, samples: int) -> int:
        return samples + 2 * min(samples, _SAMPLES)

    def run(self, examination: Examination) -> Finding:
        server, comparisons = examination.server, examination.comparisons()
        if len(server.replicas) < 2:
            raise NotApplicable("no other replica is named; --url names one")
        for sample in examination.by_length():
            here, there = server.ask(sample), server.ask(sample, replica=1)
            comparisons.add(here, there, f"{sample}, whole, on another replica", sample.size)
        if comparisons.failures:
            return comparisons.failed(
                "another replica gives other results: do both serve the same weights and dtype?",
                "another replica agrees within rounding only: its build or processor differs",
            )
        try:
            tokens = server.tokens()
        except NotApplicable:
            return comparisons.passed("whole inputs on both")
        try:
            _compare_states(examination, comparisons, tokens)
        except Refused as error:
            return Finding(
                Verdict.FAILS,
                "another replica refuses a state: do both serve the same version of the model, "
                "with the same keys for states?",
                example="a state of the first replica",
                difference=str(error),
                comparisons=comparisons.count,
            )
        if not comparisons.failures:
            return comparisons.passed("whole inputs and state tokens on both")
        return comparisons.failed("another replica continues a state differently")


def _compare_states(examination: Examination, comparisons: Comparisons, tokens: Tokens) -> None:
    for sample in examination.few(_SAMPLES):
        first, second = examination.server.cut(sample, _HALVES)
        _, state = tokens.step(None, first, last=False)
        here, _ = tokens.step(state, second, last=True)
        there, _ = tokens.step(state, second, last=True, replica=1)
        example = f"the state after half of {sample}, continued on another replica"
        comparisons.add(here, there, example, sample.size)
