"""Which regular expressions of a tokenizer.json are known to take time in line with a text."""

import re

_MOST_CHARACTERS = 256
_ATOM = r"(?:\\[pP]\{\w+\}|\\[dDsSwWnrt]|\\[^\w\s]|\[(?:[^\[\]\\&]|\\.)+\]|[^\\\[\](){}*+?|^$])"
# Nothing comes behind what repeats, so no match is tried in a second way.
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
    """Whether it is a choice of characters of which the last may repeat; it matches some text."""
    return len(pattern) <= _MOST_CHARACTERS and _SIMPLE.fullmatch(pattern) is not None


def is_quick(pattern: str) -> bool:
    """Whether its time is bounded: it is simple, or that of a well-known tokenizer."""
    return is_simple(pattern) or pattern in _KNOWN
