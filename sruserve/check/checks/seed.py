"""Does a seed fix the text under load? The same seeds alone, and at once with others."""

from functools import partial

from sruserve.check.checks.examination import Examination
from sruserve.check.errors import NotApplicable
from sruserve.check.findings import Finding

_ROUNDS = 2
_SEEDS = (11, 12)


class Seed:
    name = "seed"
    question = "Does a seed fix the text, alone and under load?"

    def max_requests(self, samples: int) -> int:
        return (3 + _ROUNDS) * samples

    def run(self, examination: Examination) -> Finding:
        server, samples = examination.server, examination.by_length()
        comparisons = examination.comparisons()
        alone = [server.complete(sample, _SEEDS[0]) for sample in samples]
        others = [server.complete(sample, _SEEDS[1]) for sample in samples]
        if all(one.parts == other.parts for one, other in zip(alone, others, strict=True)):
            raise NotApplicable("two seeds give the same texts, so the server does not sample")
        for sample, text in zip(samples, alone, strict=True):
            again = server.complete(sample, _SEEDS[0])
            comparisons.add(text, again, f"{sample}, seed {_SEEDS[0]}, alone, twice", sample.size)
        if comparisons.failures:
            return comparisons.failed(
                "a seed does not fix the text even alone: the server probably ignores `seed`"
            )
        for _ in range(_ROUNDS):
            texts = examination.at_once(
                [partial(server.complete, sample, _SEEDS[0], False) for sample in samples]
            )
            for sample, one, other in zip(samples, alone, texts, strict=True):
                example = f"{sample}, seed {_SEEDS[0]}, among {len(samples) - 1} others"
                comparisons.add(one, other, example, sample.size)
        if not comparisons.failures:
            return comparisons.passed("one seed alone and under load")
        return comparisons.failed(
            "the text of a seed changes under load: all requests probably share one source of "
            "random numbers, or rounding by the size of the batch changes what is drawn"
        )
