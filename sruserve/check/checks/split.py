"""Does any split equal the whole? Inputs in chunks, by every kind of stream that there is."""

from contextlib import closing

from sruserve.check.checks.examination import Examination
from sruserve.check.findings import Comparisons, Finding
from sruserve.check.results import Result, compare
from sruserve.check.samples import Sample
from sruserve.check.server import Server, Stream

_SAMPLES = 4
_CUTS: tuple[tuple[float, ...], ...] = ((0.5,), (0.3, 0.6), (0.1, 0.45, 0.8))
_KINDS = 2


class Split:
    name = "split"
    question = "Does an input in chunks give the result of the whole?"

    def max_requests(self, samples: int) -> int:
        chunks = sum(len(places) + 1 for places in _CUTS)
        chosen = min(samples, _SAMPLES)
        opened_and_closed = 2 * len(_CUTS)
        probes = 10
        return probes + chosen * (1 + _KINDS * (chunks + opened_and_closed))

    def run(self, examination: Examination) -> Finding:
        server, comparisons = examination.server, examination.comparisons()
        kinds = server.streams()
        for sample in examination.few(_SAMPLES):
            whole = server.ask(sample)
            for kind, open_stream in kinds.items():
                for places in _CUTS:
                    chunks = server.cut(sample, places)
                    with closing(open_stream()) as stream:
                        actual = server.joined(feed(stream, chunks), whole)
                    example = f"{sample} in {len(chunks)} chunks, by {kind}"
                    comparisons.add(whole, actual, example, sample.size * 10 + len(chunks))
        if not comparisons.failures:
            return comparisons.passed(f"chunks by {' and '.join(kinds)}")
        return _explained(examination, comparisons)


def feed(stream: Stream, chunks: list[Sample]) -> list[Result]:
    """The results of all chunks, in their order."""
    return [stream.send(chunk, last=i == len(chunks) - 1) for i, chunk in enumerate(chunks)]


def _explained(examination: Examination, comparisons: Comparisons) -> Finding:
    cause = (
        "chunks give another result than the whole: the server probably reads words, pads or "
        "normalises within a chunk"
    )
    if _forgets(examination.server, examination.few(_SAMPLES)[-1]):
        cause = (
            "the last chunk gives the result that it has alone: the server probably ignores the "
            "state, and starts anew"
        )
    rounding = (
        "chunks equal the whole within rounding only: the server probably chooses kernels by the "
        "length of an input; --tolerance 1e-5 allows that"
    )
    return comparisons.failed(cause, rounding)


def _forgets(server: Server, sample: Sample) -> bool:
    """Whether the second half of an input gives what it gives alone."""
    first, second = server.cut(sample, (0.5,))[:2]
    if not any(second.values[name] for name in second.along):
        return False  # a prompt that is empty cannot be sent alone
    with closing(next(iter(server.streams().values()))()) as stream:
        stream.send(first, last=False)
        continued = stream.send(second, last=True)
    return compare(server.ask(second), continued) is None
