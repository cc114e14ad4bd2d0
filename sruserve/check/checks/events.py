"""Does a streamed text equal the whole? Server-sent events, joined, and one reply."""

from sruserve.check.checks.examination import Examination
from sruserve.check.findings import Finding

_SAMPLES = 4
_SEED = 21


class Events:
    name = "events"
    question = "Does a text that arrives as events equal the whole?"

    def max_requests(self, samples: int) -> int:
        return 2 * min(samples, _SAMPLES)

    def run(self, examination: Examination) -> Finding:
        server, comparisons = examination.server, examination.comparisons()
        for sample in examination.by_length()[-_SAMPLES:]:
            whole = server.complete(sample, _SEED)
            events = server.complete(sample, _SEED, want_events=True)
            comparisons.add(whole, events, f"{sample}, seed {_SEED}, as events", sample.size)
        if not comparisons.failures:
            return comparisons.passed("one reply and its events")
        return comparisons.failed(
            "the events of a text do not add up to the reply: the server probably drops or splits "
            "characters between events, or ignores `seed`"
        )
