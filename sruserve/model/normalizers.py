"""How much longer a tokenizer.json could make a text, and how much work a character could be."""

import base64
from collections.abc import Iterator, Mapping
from math import inf, prod
from typing import Any

from sruserve.model.patterns import is_quick, is_simple

MOST_GROWTH = 1000.0  # sentencepiece's, after NFKD, may come to 726
# in UTF-8 bytes; of a pre-tokenizer, too, which normalizes what it splits
_GROWTH = {
    "NFC": 3.0, "NFD": 3.0, "NFKC": 11.0, "NFKD": 11.0, "BertNormalizer": 4.0, "ByteLevel": 2.0,
}  # fmt: skip


# In look-ups of a short text, each about 0.2 µs.
_BASE_WORK, _STEP_WORK, _MERGE_WORK = 8, 4, 8
_LOOKUP_BYTES = 800  # the look-up of so long a text takes twice as long
_WORD_CHARACTERS = 100  # WordPiece's, where nothing says how long a word may be


def growth(tokenizer: Mapping[str, Any]) -> float:
    """How many times as long a text could get; raises `ValueError` if that is too much.

    tokenizer: the content of a tokenizer.json.
    """
    steps = _normalizing(tokenizer)
    found = prod(map(_growth, steps))
    if found > MOST_GROWTH:
        names = ", ".join(str(step.get("type")) for step in steps if _growth(step) > 1)[:200]
        raise ValueError(
            f"its normalizers ({names}) could make a text {found:,.0f} times as long, and may "
            f"make it {MOST_GROWTH:,.0f} times as long"
        )
    return found


def work(tokenizer: Mapping[str, Any]) -> float:
    """About how many look-ups a character of a text could take; infinite if nobody can say.

    tokenizer: the content of a tokenizer.json.
    """
    steps = _normalizing(tokenizer)
    patterns = [step["pattern"].get("Regex") for step in steps if "pattern" in step]
    if not all(pattern is None or is_quick(pattern) for pattern in patterns):
        return inf
    templates = [step for step in _steps(tokenizer.get("post_processor")) if "single" in step]
    copies = prod(sum("Sequence" in part for part in step["single"]) for step in templates)
    prefixes = sum(step.get("type") in ("Metaspace", "ByteLevel") for step in steps)
    each = _BASE_WORK + _STEP_WORK * len(steps) + _lookups(tokenizer["model"])
    return float(growth(tokenizer) * max(1, prefixes) * max(1, copies) * each)


def _lookups(model: Mapping[str, Any]) -> float:
    """About how many a character of normalized text takes."""
    affixes = (model.get("continuing_subword_prefix"), model.get("end_of_word_suffix"))
    affix = sum(_size(text or "") for text in affixes)
    kind, entries = model.get("type"), model["vocab"]
    if kind in ("WordLevel", "BPE"):
        return _MERGE_WORK * (1 + affix / _LOOKUP_BYTES)
    if isinstance(entries, list):  # Unigram looks every entry up that goes on from a character
        longest = most = max((_size(entry[0]) for entry in entries), default=0)
    else:  # WordPiece looks up all beginnings of a word, for each of its pieces
        longest = int(model.get("max_input_chars_per_word", _WORD_CHARACTERS))
        most = longest // 2
    return most * (1 + (longest + affix) / _LOOKUP_BYTES)


def _normalizing(tokenizer: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*_steps(tokenizer.get("normalizer")), *_steps(tokenizer.get("pre_tokenizer"))]


def _steps(given: Any) -> Iterator[dict[str, Any]]:
    """The steps of nested sequences. The library needs no type where other fields tell it."""
    if not isinstance(given, dict):
        return
    parts = [
        given[name] for name in ("normalizers", "pretokenizers", "processors") if name in given
    ]
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
        if is_simple(step["pattern"].get("Regex", "")):
            pattern = 1  # another regular expression may match nothing, between any two characters
        return max(1.0, content / pattern) if pattern else 1.0 + content
    return _GROWTH.get(str(step.get("type")), 1.0)


def _longest_replacement(charsmap: str) -> int:
    """Bytes of the longest text behind the trie, whose size comes first."""
    data = base64.b64decode(charsmap)
    return max(map(len, data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")))


def _size(text: str) -> int:
    return len(text.encode())
