"""What a tokenizer.json adds around the ids of a text, and where it truncates them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from sruserve.model.text.decoders import Step, steps_of

Ids = NDArray[np.int64]

_MAX_ADDED = 64  # every text of a request gets them
ENDED = "\0"  # in place of an unfinished word: the text before it has got its suffix


@dataclass(frozen=True, slots=True)
class Frame:
    """The ids around a text's own, and its length.

    prefix, suffix: (ids), int64: before the first id of a text, and after its last.
    limit: the number of ids of its own that a text keeps; None: all.
    keeps_end: a longer text keeps its last ids instead of its first.
    """

    prefix: Ids
    suffix: Ids
    limit: int | None = None
    keeps_end: bool = False

    def kept(self, count: int) -> slice:
        """Which of a text's `count` ids are kept."""
        if self.limit is None or count <= self.limit:
            return slice(0, count)
        return slice(count - self.limit, count) if self.keeps_end else slice(0, self.limit)

    def around(self, ids: Ids) -> Ids:
        """Return the ids of a whole text, truncated, with those around them."""
        return np.concatenate([self.prefix, ids[self.kept(len(ids))], self.suffix])

    @property
    def whole_because(self) -> str | None:
        """Why a text cannot arrive in chunks; None: it can."""
        if self.limit is None:
            return None
        max_ids = self.limit + len(self.prefix) + len(self.suffix)
        return f"its tokenizer truncates texts to {max_ids:,} ids (`truncation` of tokenizer.json)"


def frame_of(tokenizer: Tokenizer) -> Frame | None:
    """The frame of a tokenizer; None: it has none.

    Raises `ValueError` that names the part which cannot be honoured.
    """
    prefix, suffix = _around(steps_of(tokenizer.post_processor))
    padding: dict[str, Any] | None = tokenizer.padding
    if padding is not None and (padding["length"] or padding["pad_to_multiple_of"]):
        raise ValueError(
            "its padding adds entries to a single text; remove `padding`, as texts are read in "
            "their own length"
        )
    if (added := len(prefix) + len(suffix)) > _MAX_ADDED:
        raise ValueError(
            f"its post-processor adds {added:,} ids to a text; the limit is {_MAX_ADDED}"
        )
    limit, keeps_end = None, False
    truncation: dict[str, Any] | None = tokenizer.truncation
    if truncation is not None:
        limit = truncation["max_length"] - len(prefix) - len(suffix)
        keeps_end = truncation["direction"].lower() == "left"
        if limit < 1 or truncation["strategy"] == "only_second":
            raise ValueError("its truncation leaves nothing of a text; change `truncation`")
    if limit is None and not prefix and not suffix:
        return None
    return Frame(np.array(prefix, np.int64), np.array(suffix, np.int64), limit, keeps_end)


def _around(steps: Sequence[Step]) -> tuple[list[int], list[int]]:
    """The ids that a post-processor adds before and after those of a single text."""
    prefix: list[int] = []
    suffix: list[int] = []
    for step in steps:
        match step["type"]:
            case "ByteLevel":
                continue  # it moves places only
            case "BertProcessing" | "RobertaProcessing":
                before, after = [step["cls"][1]], [step["sep"][1]]
            case "TemplateProcessing":
                before, after = _of_template(step)
            case kind:
                raise ValueError(f"its post-processor {kind} is unknown; remove it")
        prefix, suffix = before + prefix, suffix + after
    return prefix, suffix


def _of_template(step: Step) -> tuple[list[int], list[int]]:
    sides: list[list[int]] = [[]]
    for part in step["single"]:
        if "Sequence" in part:
            sides.append([])
        else:
            sides[-1] += step["special_tokens"][part["SpecialToken"]["id"]]["ids"]
    if len(sides) != 2:
        raise ValueError(
            "its post-processor TemplateProcessing must have the text once; change `single`"
        )
    return sides[0], sides[1]
