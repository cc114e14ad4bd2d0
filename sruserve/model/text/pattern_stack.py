"""Refuse regular expressions that could take much memory for each character of a text.

The library's matcher has no limit of its own. It keeps 32 bytes for each place that it may return
to: in a repetition, for each character, and room for them grows by doubling.
"""

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

from sruserve.model.text.pattern_reader import cost_of
from sruserve.model.text.patterns import is_quick

MAX_ENTRIES = 8  # for each character of a text
MAX_FIXED = 1 << 16  # besides, for a text of any length
_SHOWN = 40  # characters of a pattern
_PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def check_patterns(tokenizer: Mapping[str, Any]) -> None:
    """Raise `ValueError` for a regular expression that could take much memory.

    tokenizer: the content of a tokenizer.json.
    """
    for part in _PARTS:
        for pattern in _patterns(tokenizer.get(part)):
            if not is_quick(pattern):
                _check(pattern)


def _patterns(part: Any) -> Iterator[str]:
    """Yield all regular expressions in a part, wherever they are."""
    if isinstance(part, dict):
        if isinstance(pattern := part.get("Regex"), str):
            yield pattern
        part = list(part.values())
    if isinstance(part, list):
        for inside in part:
            yield from _patterns(inside)


def _check(pattern: str) -> None:
    try:
        cost = cost_of(pattern)
        if cost.around == inf:
            raise ValueError(
                "looks around without a limit inside a repetition, which could keep places for "
                "each pair of characters; limit the look-around, or move it out"
            )
        if (entries := cost.each + cost.around) > MAX_ENTRIES:
            raise ValueError(
                f"could keep {entries:,.0f} places for each character of a text; the limit is "
                f"{MAX_ENTRIES}: use fewer groups, alternatives and look-arounds in its repetitions"
            )
        if cost.fixed > MAX_FIXED:
            raise ValueError(
                f"could keep {cost.fixed:,.0f} places at one character; the limit is "
                f"{MAX_FIXED:,}: lower the repetitions of what may match nothing"
            )
    except ValueError as error:
        shown = pattern if len(pattern) <= _SHOWN else pattern[:_SHOWN] + "…"
        raise ValueError(f"its regular expression {shown!r} {error}") from None
