"""Does a retried step count once? Numbered steps that are sent again, later and at once."""

from contextlib import closing

from sruserve.check.checks.examination import Examination
from sruserve.check.checks.split import feed
from sruserve.check.errors import Refused
from sruserve.check.findings import Comparisons, Finding, Verdict
from sruserve.check.results import Result
from sruserve.check.samples import Sample
from sruserve.check.server import NumberedStream, Ready

_SAMPLES = 3
_PLACES = (0.3, 0.6)
_AT_ONCE = 2  # copies of a step


class Retry:
    name = "retry"
    question = "Does a step that is sent again count once?"

    def max_requests(self, samples: int) -> int:
        chunks = len(_PLACES) + 1
        probes = 4
        each = 2 * 2 + chunks + chunks * _AT_ONCE + 1
        return probes + min(samples, _SAMPLES) * each

    def run(self, examination: Examination) -> Finding:
        server, comparisons = examination.server, examination.comparisons()
        open_stream = server.numbered()
        refused: tuple[Sample, str] | None = None
        for sample in examination.few(_SAMPLES):
            chunks = server.cut(sample, _PLACES)
            with closing(open_stream()) as stream:
                once = feed(stream, chunks)
            with closing(open_stream()) as stream:
                try:
                    _compare(examination, comparisons, stream, sample, chunks, once)
                except Refused as error:
                    if error.status == 429 or error.status >= 500:
                        raise
                    refused = refused or (sample, str(error))
        if refused is not None and not comparisons.failures:
            sample, message = refused
            return Finding(
                Verdict.FAILS,
                "a step that is sent again is refused, so a client that lost a reply cannot get it",
                example=f"a step of {sample}, sent again",
                difference=message,
                comparisons=comparisons.count,
            )
        if not comparisons.failures:
            return comparisons.passed("steps once, again and twice at once")
        return comparisons.failed(
            "a step that is sent again is applied again: the server probably ignores its number"
        )


def _compare(
    examination: Examination,
    comparisons: Comparisons,
    stream: NumberedStream,
    sample: Sample,
    chunks: list[Sample],
    once: list[Result],
) -> None:
    """Send the first step again, all later ones twice at once; the results are those of `once`."""
    for i, (chunk, expected) in enumerate(zip(chunks, once, strict=True)):
        number, last = i + 1, i == len(chunks) - 1

        def send(
            ready: Ready | None = None,
            number: int = number,
            chunk: Sample = chunk,
            last: bool = last,
        ) -> Result:
            return stream.step(number, chunk, last, ready=ready)

        if i == 0:
            how, results = "sent again", [send(), send()]
        else:
            how, results = "sent twice at once", examination.at_once([send] * _AT_ONCE)
        for result in results:
            example = f"step {number} of {sample}, {how}"
            comparisons.add(expected, result, example, sample.size * 10 + number)
