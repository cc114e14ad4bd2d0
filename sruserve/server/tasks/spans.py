"""Labels of single steps, merged into spans: BIO, its variants with ends, and plain labels."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum

_BEGINS, _GOES_ON, _ENDS, _ALONE = "B", "I", ("E", "L"), ("S", "U")
_MARKS = (_BEGINS, _GOES_ON, *_ENDS, *_ALONE)
_OUTSIDE = "O"


@dataclass(frozen=True, slots=True)
class Span:
    """Steps `first` to `end` (exclusive) that belong together, with the mean of their scores.

    continued: it goes on with the last span of the steps before these.
    """

    label: str
    first: int
    end: int
    score: float
    continued: bool


class Scheme:
    """How the labels of a model mark spans.

    Where one of them begins with `B-` or `I-`, a span of X is `B-X` or `I-X` and every `I-X`
    behind it; `E-X` or `L-X` is its last step, `S-X` or `U-X` its only one. Where there
    is but one kind of span, the labels may be `B`, `I` and such marks alone: its spans have an
    empty label. A label without such a prefix, and every label of other models, makes a span of
    each run of equal ones. `O` makes none.
    """

    def __init__(self, labels: Sequence[str]) -> None:
        prefixed = any(label.startswith((f"{_BEGINS}-", f"{_GOES_ON}-")) for label in labels)
        bare = {_BEGINS, _GOES_ON} <= set(labels) <= {_OUTSIDE, *_MARKS}
        if bare:
            self._marks = [(label, "") if label in _MARKS else ("", label) for label in labels]
        else:
            self._marks = [_mark(label) if prefixed else ("", label) for label in labels]

    def spans(
        self, labels: Iterable[int], scores: Sequence[float], before: int | None
    ) -> list[Span]:
        """The spans of some steps, in order.

        before: the label of the step before the first.
        """
        spans: list[Span] = []
        kind, first, continued = _OUTSIDE, 0, False  # the open span, if its kind is not O
        if before is not None:
            kind, continued = self._open_after(before), True
        step = -1

        def close(end: int) -> None:
            if kind != _OUTSIDE and end > first:
                score = fsum(scores[first:end]) / (end - first)
                spans.append(Span(kind, first, end, score, continued))

        for step, label in enumerate(labels):
            mark, of = self._marks[label]
            if of != kind or mark == _BEGINS or mark in _ALONE:
                close(step)
                kind, first, continued = of, step, False
            if mark in _ENDS or mark in _ALONE:
                close(step + 1)
                kind, first = _OUTSIDE, step + 1
        close(step + 1)
        return spans

    def _open_after(self, label: int) -> str:
        """The kind of span that goes on behind a step with this label; O: none."""
        mark, kind = self._marks[label]
        return _OUTSIDE if mark in _ENDS or mark in _ALONE else kind


def _mark(label: str) -> tuple[str, str]:
    """`B-PER` as ("B", "PER"); a label without a prefix as ("", label)."""
    mark, dash, kind = label.partition("-")
    if dash and kind and mark in _MARKS:
        return mark, kind
    return "", label
