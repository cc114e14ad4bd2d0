"""Does a state survive? Used later, twice, after other work, and streams among others."""

from collections.abc import Callable
from contextlib import ExitStack, closing, suppress

from sruserve.check.checks.examination import Examination
from sruserve.check.checks.split import feed
from sruserve.check.errors import NotApplicable
from sruserve.check.findings import Comparisons, Finding
from sruserve.check.results import Result
from sruserve.check.samples import Sample
from sruserve.check.server import Server, Stream, Tokens

_SAMPLES = 4
_HALVES = (0.5,)
_KINDS = 2
_COPIES = 3  # of one state, used at the same time


class Survival:
    name = "state"
    question = "Does a state give the same later, twice and after other work?"

    def max_requests(self, samples: int) -> int:
        chosen = min(samples, _SAMPLES)
        probes = 10
        return probes + chosen * (4 + _COPIES) + samples + chosen * _KINDS * 2 * (2 + 2)

    def run(self, examination: Examination) -> Finding:
        server, comparisons = examination.server, examination.comparisons()
        kinds = server.streams()
        done = []
        with suppress(NotApplicable):
            _compare_tokens(examination, comparisons, server.tokens())
            done.append("state tokens twice, later and at once")
        for kind, open_stream in kinds.items():
            _compare_interleaved(examination, comparisons, kind, open_stream)
            done.append(f"{kind} among others")
        if not comparisons.failures:
            return comparisons.passed(", ".join(done))
        return _explained(comparisons)


def _compare_tokens(examination: Examination, comparisons: Comparisons, tokens: Tokens) -> None:
    server, chosen = examination.server, examination.few(_SAMPLES)
    halves = [server.cut(sample, _HALVES) for sample in chosen]
    begun = [tokens.step(None, first, last=False)[1] for first, _ in halves]
    used = [
        tokens.step(state, second, last=True)[0]
        for state, (_, second) in zip(begun, halves, strict=True)
    ]

    def compare(i: int, actual: Result, how: str) -> None:
        example = f"the state after half of {chosen[i]}, used {how}"
        comparisons.add(used[i], actual, example, chosen[i].size)

    for i, (state, (_, second)) in enumerate(zip(begun, halves, strict=True)):
        compare(i, tokens.step(state, second, last=True)[0], "twice")
    examination.ask_at_once(list(examination.samples))
    for i in reversed(range(len(chosen))):
        state, second = begun[i], halves[i][1]
        compare(i, tokens.step(state, second, last=True)[0], "after other work")
        copies = examination.at_once([_use(tokens, state, second)] * _COPIES)
        for copy in copies:
            compare(i, copy, f"{_COPIES} times at once")


def _use(tokens: Tokens, state: str, chunk: Sample) -> Callable[[Callable[[], None]], Result]:
    return lambda ready: tokens.step(state, chunk, last=True, ready=ready)[0]


def _compare_interleaved(
    examination: Examination,
    comparisons: Comparisons,
    kind: str,
    open_stream: Callable[[], Stream],
) -> None:
    """Streams one after another, and the same with all first chunks before all second ones."""
    server: Server = examination.server
    chosen = examination.few(_SAMPLES)
    halves = [server.cut(sample, _HALVES) for sample in chosen]
    expected = []
    for chunks in halves:
        with closing(open_stream()) as stream:
            expected.append(feed(stream, chunks)[-1])
    with ExitStack() as opened:
        streams = [opened.enter_context(closing(open_stream())) for _ in halves]
        for stream, chunks in zip(streams, halves, strict=True):
            stream.send(chunks[0], last=False)
        for i in reversed(range(len(streams))):
            actual = streams[i].send(halves[i][1], last=True)
            example = f"{chosen[i]} in two chunks by {kind}, with other streams between them"
            comparisons.add(expected[i], actual, example, chosen[i].size)


def _explained(comparisons: Comparisons) -> Finding:
    failures = comparisons.failures
    cause = "a state gives another result later: the server probably changes it in place"
    if all("between them" in failure.example for failure in failures):
        cause = (
            "a stream changes if others run between its chunks: the server probably keeps one "
            "state for several streams"
        )
    elif all("at once" in failure.example for failure in failures):
        cause = "uses of one state at the same time disturb each other"
    rounding = (
        "a state gives the same within rounding only: the server probably chooses kernels by the "
        "size of the batch; --tolerance 1e-5 allows that"
    )
    return comparisons.failed(cause, rounding)
