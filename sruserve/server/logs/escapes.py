"""Escape what could begin a new line in a log, control a terminal, or reorder or hide its text."""

import re

# The joiners U+200C and U+200D are invisible, too, but belong to words and emoji.
_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)


def escaped(text: str) -> str:
    """The text in one line, without control characters and invisible ones."""
    return _CONTROL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode()
