"""Merge labels of steps into spans: BIO, its variants with ends, and plain labels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum

_BEGINS, _CONTINUES, _ENDS, _ALONE = "B", "I", ("E", "L"), ("S", "U")
_MARKS = (_BEGINS, _CONTINUES, *_ENDS, *_ALONE)
_OUTSIDE = "O"


@dataclass(frozen=True, slots=True)
class Span:
    """Steps `first` to `end` (exclusive) that belong together, with the mean of their scores.

    continued: it continues the last span of the previous steps.
    """

    label: str
    first: int
    end: int
    score: float
    continued: bool


class Scheme:
    """How the labels of a model mark spans.

    If one of them begins with `B-` or `I-`, a span of X is `B-X` or `I-X` and every `I-X`
    after it; `E-X` or `L-X` is its last step, `S-X` or `U-X` its only one. If there
    is only one kind of span, the labels may be the marks alone: `B`, `I` and so on. Its spans have
    an empty label. A label without such a prefix, and every label of other models, makes a span of
    each run of equal ones. `O` makes none.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        prefixed = any(label.startswith((f"{_BEGINS}-", f"{_CONTINUES}-")) for label in labels)
        bare = {_BEGINS, _CONTINUES} <= set(labels) <= {_OUTSIDE, *_MARKS}
        if bare:
            self._marks = [(label, "") if label in _MARKS else ("", label) for label in labels]
        else:
            self._marks = [_mark(label) if prefixed else ("", label) for label in labels]

    def spans(
        self, labels: Iterable[int], scores: Sequence[float], previous: int | None
    ) -> list[Span]:
        """The spans of some steps, in order.

        previous: the label of the step before the first.
        """
        spans: list[Span] = []
        kind, first, continued = _OUTSIDE, 0, False  # the open span, if its kind is not O
        if previous is not None:
            kind, continued = self._open_kind_after(previous), True
        step = -1

        def close(end: int) -> None:
            if kind != _OUTSIDE and end > first:
                score = fsum(scores[first:end]) / (end - first)
                spans.append(Span(kind, first, end, score, continued))

        for step, label in enumerate(labels):
            mark, label_kind = self._marks[label]
            if label_kind != kind or mark == _BEGINS or mark in _ALONE:
                close(step)
                kind, first, continued = label_kind, step, False
            if mark in _ENDS or mark in _ALONE:
                close(step + 1)
                kind, first = _OUTSIDE, step + 1
        close(step + 1)
        return spans

    def _open_kind_after(self, label: int) -> str:
        """The kind of the span that is open after a step with this label; O: none."""
        mark, kind = self._marks[label]
        return _OUTSIDE if mark in _ENDS or mark in _ALONE else kind


def _mark(label: str) -> tuple[str, str]:
    """`B-PER` as ("B", "PER"); a label without a prefix as ("", label)."""
    mark, dash, kind = label.partition("-")
    if dash and kind and mark in _MARKS:
        return mark, kind
    return "", label
