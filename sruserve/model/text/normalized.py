"""Limit the normalized characters of a text that cannot be cut: each takes about 70 bytes."""

from typing import Any

MAX_NORMALIZED = 1 << 21
_PIECE = 1 << 16  # normalized characters, at most, for which the library holds the interpreter


def is_too_long(tokenizer: Any, growth: float, text: str) -> bool:
    """Whether a text has more than `MAX_NORMALIZED` characters once it is normalized.

    growth: the largest factor by which the normalizers can lengthen a text.
    """
    if len(text) * growth <= MAX_NORMALIZED:
        return False
    normalizer, size, length = tokenizer.normalizer, max(1, int(_PIECE / growth)), 0
    for begin in range(0, len(text), size):
        piece = text[begin : begin + size]
        length += len(piece if normalizer is None else normalizer.normalize_str(piece))
        if length > MAX_NORMALIZED:
            return True
    return False
