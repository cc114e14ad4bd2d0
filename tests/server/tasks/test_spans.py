"""Labels of steps become spans, and the chunks' spans are those of the whole."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sruserve.server.tasks.spans import Scheme, Span

BIO = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
BIOES = (*BIO, "E-PER", "S-PER", "E-LOC", "S-LOC")
BILOU = (*BIO, "L-PER", "U-PER")
MIXED = (*BIO, "MISC", "x-y")
BARE = ("O", "B", "I")
BARE_ENDS = (*BARE, "E", "S")
LETTERS = ("O", "B", "I", "A")
PLAIN = ("O", "vowel", "consonant", "B2-x")


def spans_of(labels: tuple[str, ...], text: str) -> list[tuple[str, int, int]]:
    steps = [labels.index(label) for label in text.split()]
    spans = Scheme(labels).spans(steps, [1.0] * len(steps), None)
    assert not any(span.continued for span in spans)
    return [(span.label, span.first, span.end) for span in spans]


@pytest.mark.parametrize(
    ("labels", "text", "spans"),
    [
        (BIO, "O B-PER I-PER O B-LOC", [("PER", 1, 3), ("LOC", 4, 5)]),
        (BIO, "B-PER B-PER I-PER", [("PER", 0, 1), ("PER", 1, 3)]),
        (BIO, "B-PER I-LOC I-LOC", [("PER", 0, 1), ("LOC", 1, 3)]),
        (BIO, "I-PER I-PER O I-PER", [("PER", 0, 2), ("PER", 3, 4)]),
        (BIO, "O O", []),
        (BIOES, "B-PER I-PER E-PER I-PER", [("PER", 0, 3), ("PER", 3, 4)]),
        (BIOES, "S-PER S-PER E-LOC", [("PER", 0, 1), ("PER", 1, 2), ("LOC", 2, 3)]),
        (BIOES, "B-PER S-PER I-PER", [("PER", 0, 1), ("PER", 1, 2), ("PER", 2, 3)]),
        (BILOU, "B-PER L-PER U-PER", [("PER", 0, 2), ("PER", 2, 3)]),
        (MIXED, "MISC MISC B-PER x-y", [("MISC", 0, 2), ("PER", 2, 3), ("x-y", 3, 4)]),
        (BARE, "B I I O I", [("", 0, 3), ("", 4, 5)]),
        (BARE, "B B I", [("", 0, 1), ("", 1, 3)]),
        (BARE_ENDS, "B I E I S", [("", 0, 3), ("", 3, 4), ("", 4, 5)]),
        (LETTERS, "B I I A", [("B", 0, 1), ("I", 1, 3), ("A", 3, 4)]),
        (PLAIN, "vowel vowel O consonant B2-x", [("vowel", 0, 2), ("consonant", 3, 4),
                                                 ("B2-x", 4, 5)]),
        (("O", "S-x"), "S-x S-x O", [("S-x", 0, 2)]),
    ],
)  # fmt: skip
def test_spans(labels: tuple[str, ...], text: str, spans: list[tuple[str, int, int]]) -> None:
    assert spans_of(labels, text) == spans


def test_a_spans_score_is_the_mean_of_its_steps() -> None:
    (span,) = Scheme(BIO).spans([1, 2, 2], [0.25, 0.5, 0.75], None)
    assert span == Span("PER", 0, 3, 0.5, False)


@pytest.mark.parametrize(
    ("before", "after", "continued"),
    [
        ("B-PER", "I-PER", True),
        ("I-PER", "I-PER", True),
        ("I-PER", "E-PER", True),
        ("I-PER", "B-PER", False),
        ("I-PER", "S-PER", False),
        ("E-PER", "I-PER", False),
        ("S-PER", "I-PER", False),
        ("I-LOC", "I-PER", False),
        ("O", "I-PER", False),
    ],
)
def test_a_span_continues_the_one_before(before: str, after: str, continued: bool) -> None:
    (span,) = Scheme(BIOES).spans([BIOES.index(after)], [1.0], BIOES.index(before))
    assert span == Span("PER", 0, 1, 1.0, continued)


@given(
    labels=st.sampled_from([BIO, BIOES, BILOU, MIXED, BARE, BARE_ENDS, LETTERS, PLAIN]),
    steps=st.lists(st.integers(0, 99), max_size=12),
    cut=st.integers(0, 12),
)
def test_spans_of_two_chunks_are_those_of_the_whole(
    labels: tuple[str, ...], steps: list[int], cut: int
) -> None:
    scheme, steps = Scheme(labels), [step % len(labels) for step in steps]
    cut = min(cut, len(steps))
    whole = scheme.spans(steps, [1.0] * len(steps), None)
    joined = scheme.spans(steps[:cut], [1.0] * cut, None)
    before = steps[cut - 1] if cut else None
    for span in scheme.spans(steps[cut:], [1.0] * (len(steps) - cut), before):
        if span.continued:
            joined[-1] = replace(joined[-1], end=span.end + cut)
        else:
            joined.append(replace(span, first=span.first + cut, end=span.end + cut))
    assert joined == whole
