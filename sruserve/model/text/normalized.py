"""Limit the normalized characters of a text that cannot be cut: each takes about 70 bytes."""

from typing import Any

MAX_NORMALIZED = 1 << 21
MAX_UTF8_BYTES = 4  # of a character
_PIECE = 1 << 16  # normalized ASCII characters, at most, for which it holds the interpreter


def max_normalized(growth: float, text: str) -> float:
    """The most characters that a text may have once it is normalized: one for each UTF-8 byte.

    A character of several bytes may become as many of one byte without growth in bytes.
    """
    size = len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))
    return growth * size


def is_too_long(
    tokenizer: Any, growth: float, text: str, max_characters: int, *, is_slow: bool = False
) -> bool:
    """Whether a text has more than `max_characters` once it is normalized.

    growth: the largest factor by which the normalizers can lengthen a text, in UTF-8 bytes.
    is_slow: the text is not normalized, so that each that could be too long is.
    """
    if max_normalized(growth, text) <= max_characters:
        return False
    if is_slow:
        return True
    normalizer, size, length = tokenizer.normalizer, max(1, int(_PIECE / growth)), 0
    for begin in range(0, len(text), size):
        piece = text[begin : begin + size]
        length += len(piece if normalizer is None else normalizer.normalize_str(piece))
        if length > max_characters:
            return True
    return False
