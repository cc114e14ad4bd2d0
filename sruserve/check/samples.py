"""The inputs of an examination: built-in sentences of many lengths, or a user's own file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from sruserve.check.errors import Misuse

MAX_SAMPLES = 8
_MAX_FILE_BYTES = 1 << 20
_SHOWN = 24

TEXTS = (
    "Who",
    "What is it?",
    "Where does the river begin, and where does it end?",
    "How far",
    "When the ship came home at last, nobody on the shore could say which flag it had carried, "
    "or what the long voyage had been for.",
    "Why do the bells ring tonight?",
    "Name the first book that was printed in the town, the man who printed it, the street in which "
    "he lived, and the price that a reader paid for a copy; then say how many copies are left, who "
    "owns them today, and whether any of them may be read by a visitor.",
    "Which of the two roads is shorter in winter, when the pass is closed?",
)


@dataclass(frozen=True)
class Sample:
    """One input: the values of a request by name, texts or rows of numbers.

    along: the values that are cut when the input is sent in chunks.
    options: the other fields of its request, such as `max_tokens` and `seed` of a generated text.
    number: names an input without a text.
    """

    values: Mapping[str, Any]
    along: frozenset[str]
    options: dict[str, Any] = field(default_factory=dict)
    number: int = 0

    @property
    def size(self) -> int:
        """Characters of a text, or steps."""
        return max((len(self.values[name]) for name in self.along), default=0)

    def __str__(self) -> str:
        texts = [value for value in self.values.values() if isinstance(value, str)]
        if not texts:
            steps = f" ({self.size} step{'s' if self.size > 1 else ''})" if self.along else ""
            return f"input {self.number}{steps}"
        text = texts[0]
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        return f"{shown!r} ({len(text)} characters)"

    def cut(self, places: Sequence[float]) -> list["Sample"]:
        """The input in chunks that end at these fractions of it. No chunk is empty."""
        ends = _ends(self.size, places)
        return [
            replace(
                self,
                values={
                    name: value[start:end] if name in self.along else value
                    for name, value in self.values.items()
                },
            )
            for start, end in pairwise(ends)
        ]

    def cut_generation(self, places: Sequence[float]) -> list["Sample"]:
        """The generation of a text in chunks: all of the prompt, then nothing but more tokens."""
        ends = _ends(self.options["max_tokens"], places)
        later = {name: value for name, value in self.options.items() if name != "seed"}
        empty = {name: value[:0] for name, value in self.values.items()}
        return [
            replace(
                self,
                values=empty if start else self.values,
                options=(later if start else self.options) | {"max_tokens": end - start},
            )
            for start, end in pairwise(ends)
        ]


def _ends(size: int, places: Sequence[float]) -> list[int]:
    """Where chunks begin and end; none is empty."""
    return sorted({0, size, *(round(place * size) for place in places)})


def read_texts(path: Path) -> tuple[str, ...]:
    """The texts of a file, one a line; the first `MAX_SAMPLES` that are not empty."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        lines = content.decode().splitlines()
    except OSError as error:
        raise Misuse(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Misuse(f"{path} is not UTF-8") from None
    if len(content) > _MAX_FILE_BYTES:
        raise Misuse(f"{path} exceeds {_MAX_FILE_BYTES >> 20} MiB; keep a few lines of it")
    texts = tuple(line for line in lines if line.strip())[:MAX_SAMPLES]
    if len(texts) < 2:
        raise Misuse(f"{path} has fewer than two texts; write one a line, of different lengths")
    return texts
