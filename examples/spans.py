"""Spans of a text as labels of its bytes in BIO, and how many of them a tagger finds."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from examples.entity_sentences import LABELS, Marked, Span
from examples.models import Tagger

TAGS = ["O", *(f"{mark}-{label}" for label in LABELS for mark in "BI")]
_MARK = re.compile(r"\[([^]]+)\]\((\w+)\)")


def read_marked(path: Path) -> list[Marked]:
    """The texts in a file of lines such as `It costs [$5](money).`, with their spans."""
    return [_unmarked(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _unmarked(line: str) -> Marked:
    text, spans, end = "", list[Span](), 0
    for mark in _MARK.finditer(line):
        text += line[end : mark.start()]
        spans.append((len(text), len(text) + len(mark[1]), mark[2]))
        text, end = text + mark[1], mark.end()
    return text + line[end:], spans


def encoded(marked: Marked) -> tuple[Tensor, Tensor]:
    """The bytes of a text, (steps), and their labels, (steps), both int64."""
    text, spans = marked
    labels = torch.zeros(len(text.encode()), dtype=torch.long)
    for begin, end, label in spans:
        first = len(text[:begin].encode())
        labels[first : first + len(text[begin:end].encode())] = TAGS.index(f"I-{label}")
        labels[first] = TAGS.index(f"B-{label}")
    return torch.tensor(list(text.encode())), labels


def marked_by(labels: Iterable[int], text: str) -> list[Span]:
    """The spans that the labels of a text's bytes mark."""
    spans, content = list[Span](), text.encode()
    for place, tag in enumerate(map(TAGS.__getitem__, labels)):
        if tag.startswith("B-"):
            begin = len(content[:place].decode(errors="ignore"))
            spans.append((begin, begin, tag[2:]))
        if tag != "O":
            end = len(content[: place + 1].decode(errors="ignore"))
            spans[-1] = (spans[-1][0], end, tag[2:])
    return spans


@torch.no_grad()
def exact_spans(model: Tagger, texts: Sequence[Marked]) -> dict[str, int]:
    """How many spans are found exactly, are marked, and should be; each text on its own.

    By label, too, as `right date` and so on. F1 is `2 * right / (marked + wanted)`.
    """
    model.eval()
    counts = Counter[str]()
    for text, expected in texts:
        (labels,) = model(torch.tensor(list(text.encode()))[:, None])
        marked = marked_by(labels, text)
        some = {"right": set(marked) & set(expected), "marked": marked, "wanted": expected}
        for name, spans in some.items():
            counts[name] += len(spans)
            counts.update(f"{name} {label}" for _, _, label in spans)
    return dict(counts)


def f1(counts: dict[str, int], label: str = "") -> float:
    """F1 of exact spans, of all or of a label."""
    right, marked, expected = (
        counts.get(f"{name} {label}".strip(), 0) for name in ("right", "marked", "wanted")
    )
    return 2 * right / max(1, marked + expected)
