"""The regular expressions of a tokenizer.json whose time is known to be linear in the text."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from tokenizers import Regex
from tokenizers.normalizers import Replace

_MAX_CHARACTERS = 256
_ATOM = r"(?:\\[pP]\{\w+\}|\\[dDsSwWnrt]|\\[^\w\s]|\[(?:[^\[\]\\&]|\\.)+\]|[^\\\[\](){}*+?|^$])"
_REPETITION = r"(?:\+|\{[1-9],?[1-9]?\})"
# Nothing follows a repetition, so the matcher never backtracks.
_PART = rf"{_ATOM}+{_REPETITION}?"
_SIMPLE = re.compile(rf"{_PART}(?:\|{_PART})*", re.DOTALL)
_TOKENS = re.compile(rf"(?P<atom>{_ATOM})|(?P<repetition>{_REPETITION})|\|", re.DOTALL)

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


class Alternative(NamedTuple):
    """One of the texts that a simple pattern matches: a run of characters.

    atoms: the expression of each character. repetition: of the last one, such as `+`; may be empty.
    """

    atoms: tuple[str, ...]
    repetition: str = ""

    def matches(self, characters: str) -> bool:
        """Whether a match may contain one of these characters."""
        return any(_matches(atom, each) for atom in self.atoms for each in characters)

    @property
    def is_one_kind(self) -> bool:
        """Whether the characters of a match are all alike, and their number is of no matter."""
        return len(self.atoms) == 1 and self.repetition in ("", "+")


def alternatives(pattern: str) -> Iterator[Alternative]:
    """Yield the alternatives of a simple pattern."""
    one = Alternative(())
    for token in _TOKENS.finditer(pattern):
        if token["atom"] is not None:
            one = Alternative((*one.atoms, token["atom"]))
        elif token["repetition"] is not None:
            one = one._replace(repetition=token["repetition"])
        else:
            yield one
            one = Alternative(())
    yield one


def _matches(atom: str, character: str) -> bool:
    """Whether the library's own matcher finds the character."""
    return not Replace(Regex(atom), "").normalize_str(character)


def is_quick(pattern: str) -> bool:
    """Whether the pattern's time is bounded: it is simple, or that of a well-known tokenizer."""
    return is_simple(pattern) or pattern in _KNOWN


def is_known(pattern: str) -> bool:
    """Whether the pattern is that of a well-known tokenizer.

    Each of their matches ends before a white space character that follows another character, and
    none depends on what follows that place.
    """
    return pattern in _KNOWN
