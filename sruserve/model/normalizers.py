"""How much longer the normalizers of a tokenizer.json could make a text."""

import base64
import json
from collections.abc import Iterator
from math import prod
from typing import Any

MOST_GROWTH = 1000.0  # sentencepiece's, after NFKD, may come to 726
# in UTF-8 bytes; of a pre-tokenizer, too, which normalizes what it splits
_GROWTH = {
    "NFC": 3.0, "NFD": 3.0, "NFKC": 11.0, "NFKD": 11.0, "BertNormalizer": 4.0, "ByteLevel": 2.0,
}  # fmt: skip


def growth(content: bytes) -> float:
    """How many times as long a text could get; raises `ValueError` if that is too much.

    content: of a tokenizer.json.
    """
    tokenizer = json.loads(content)
    steps = [*_steps(tokenizer.get("normalizer")), *_steps(tokenizer.get("pre_tokenizer"))]
    found = prod(map(_growth, steps))
    if found > MOST_GROWTH:
        names = ", ".join(str(step.get("type")) for step in steps if _growth(step) > 1)[:200]
        raise ValueError(
            f"its normalizers ({names}) could make a text {found:,.0f} times as long, and may "
            f"make it {MOST_GROWTH:,.0f} times as long"
        )
    return found


def _steps(given: Any) -> Iterator[dict[str, Any]]:
    """The steps of nested sequences. The library needs no type where other fields tell it."""
    if not isinstance(given, dict):
        return
    parts = [given[name] for name in ("normalizers", "pretokenizers") if name in given]
    if not parts:
        yield given
    for part in parts:
        for step in part:
            yield from _steps(step)


def _growth(step: dict[str, Any]) -> float:
    if "prepend" in step:
        return 1.0 + _size(step["prepend"])
    if "precompiled_charsmap" in step:
        return max(1.0, _longest_replacement(step["precompiled_charsmap"]))
    if "pattern" in step and "content" in step:
        content, pattern = _size(step["content"]), _size(step["pattern"].get("String", ""))
        # a regular expression may match nothing, between any two characters
        return max(1.0, content / pattern) if pattern else 1.0 + content
    return _GROWTH.get(str(step.get("type")), 1.0)


def _longest_replacement(charsmap: str) -> int:
    """Bytes of the longest text behind the trie, whose size comes first."""
    data = base64.b64decode(charsmap)
    return max(map(len, data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")))


def _size(text: str) -> int:
    return len(text.encode())
