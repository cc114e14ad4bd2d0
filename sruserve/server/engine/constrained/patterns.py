"""Regular expressions: their matchers, and short matches of them."""

import re
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, regex_to_lark

from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.grammar import (
    END,
    allowed_bytes,
    compile_matcher,
    grammar_error,
)
from sruserve.server.errors import InvalidRequest

ANY_TEXT = "(?s:.*)"
_MAX_LENGTH = 8192  # characters of a pattern
_LONGEST_MATCH = 1024  # characters of a match that is searched for
_ZERO = ord("0")  # digits and letters are tried first: JSON escapes none of them
_VERBOSE = re.compile(r"(?<!\\)(?:\\\\)*\(\?[a-zA-Z]*x[a-zA-Z]*(?:-[a-zA-Z]+)?[:)]")
# The library writes these as escapes, which stand for themselves under the flag x.
_ESCAPED_SPACES = re.compile(r"[\t\n\r]")


def pattern_matcher(pattern: str, writable_text: str) -> LLMatcher:
    """A matcher of the intersection of two expressions; raises `InvalidRequest`.

    The library knows which parts of the intersection are empty, so that they are no dead ends.
    """
    return _intersection([_lark(pattern), writable_text])


def check_flags(pattern: str) -> None:
    """Refuse line breaks and tabs that the flag x lets a pattern ignore."""
    if _VERBOSE.search(pattern) and _ESCAPED_SPACES.search(pattern):
        raise InvalidRequest(
            "the regex sets the flag x and has line breaks or tabs, which are not ignored here: "
            "remove them, or write those of the text as \\n, \\r or \\t"
        )


def shortest_match(
    patterns: Sequence[str],
    vocabulary: ByteVocabulary,
    in_json: bool = False,
    min_length: int = 0,
    max_length: int | None = None,
) -> str:
    """A shortest text that all patterns match; "": there is none, or the search takes too long.

    in_json: of characters that the vocabulary can spell in a JSON string.
    min_length, max_length: its length, in characters.
    """
    max_length = _LONGEST_MATCH if max_length is None else min(max_length, _LONGEST_MATCH)
    too_short, length = min_length - 1, min(max(min_length, 1), max_length)
    shortest: LLMatcher | None = None
    try:
        expressions = [*map(_lark, patterns), vocabulary.spellable_text(in_json)]
        while too_short < length <= max_length:
            matcher = _of_length(expressions, min_length, length)
            if matcher is None:
                too_short = length
            else:
                shortest, max_length = matcher, length - 1
            length = (too_short + max_length + 1) // 2 if shortest else min(2 * length, max_length)
        return "" if shortest is None else _any_match(shortest)
    except InvalidRequest:  # they are too intricate together
        return ""


def _of_length(expressions: Sequence[str], min_length: int, max_length: int) -> LLMatcher | None:
    """A matcher of what all expressions match in a number of characters; None: nothing."""
    matcher = _intersection([*expressions, f"(?s:.{{{min_length},{max_length}}})"])
    return matcher if matcher.is_accepting() or allowed_bytes(matcher).any() else None


def _any_match(matcher: LLMatcher) -> str:
    """A match of a matcher of bounded length, which has no dead ends."""
    match = bytearray()
    while not matcher.is_accepting():
        from_zero = np.roll(allowed_bytes(matcher), -_ZERO)
        byte = (int(from_zero.argmax()) + _ZERO) % END
        matcher.consume_token(byte)
        match.append(byte)
    return match.decode()


def _intersection(expressions: Sequence[str]) -> LLMatcher:
    """A matcher of what all expressions match, each in Lark's notation."""
    terms = " & ".join(f"/{expression}/" for expression in expressions)
    return compile_matcher(f"start: TEXT\nTEXT: {terms}")


def _lark(pattern: str) -> str:
    """A pattern in Lark's notation, without a group around it, which the pattern could close."""
    if len(pattern) > _MAX_LENGTH:
        raise InvalidRequest(f"a regex may have {_MAX_LENGTH} characters at most; simplify it")
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:  # the library would drop the last one
        raise InvalidRequest("the regex ends in a single backslash; escape it with another one")
    try:
        return regex_to_lark(pattern, use_ascii="") or "(?:)"
    except ValueError as error:  # the pattern is no Unicode
        raise grammar_error(str(error)) from None
