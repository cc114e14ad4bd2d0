"""The regular expressions of a tokenizer.json whose time is known to be linear in the text."""

import re

_MAX_CHARACTERS = 256
_ATOM = r"(?:\\[pP]\{\w+\}|\\[dDsSwWnrt]|\\[^\w\s]|\[(?:[^\[\]\\&]|\\.)+\]|[^\\\[\](){}*+?|^$])"
# Nothing follows a repetition, so the matcher never backtracks.
_PART = rf"{_ATOM}+(?:\+|\{{[1-9],?[1-9]?\}})?"
_SIMPLE = re.compile(rf"{_PART}(?:\|{_PART})*", re.DOTALL)

_WORD_ENDS = "'s|'t|'re|'ve|'m|'ll|'d"
_MARKS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_KNOWN = {
    _WORD_ENDS + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # GPT-2
    _WORD_ENDS + r"|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",  # CLIP
    rf"(?i:{_WORD_ENDS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_MARKS}",  # Llama 3
    rf"(?i:{_WORD_ENDS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_MARKS}",  # Qwen 2
}


def is_simple(pattern: str) -> bool:
    """Whether each alternative is a run of characters, of which only the last may repeat.

    Such a pattern matches at least one character.
    """
    return len(pattern) <= _MAX_CHARACTERS and _SIMPLE.fullmatch(pattern) is not None


def is_quick(pattern: str) -> bool:
    """Whether the pattern's time is bounded: it is simple, or that of a well-known tokenizer."""
    return is_simple(pattern) or pattern in _KNOWN


def is_known(pattern: str) -> bool:
    """Whether the pattern is that of a well-known tokenizer.

    Each of their matches ends before a white space character that follows another character, and
    none depends on what comes behind that place.
    """
    return pattern in _KNOWN
