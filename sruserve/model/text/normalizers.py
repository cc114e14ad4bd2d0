"""Bounds on a tokenizer.json: the growth of a text's length, and the work for a character."""

import base64
from collections.abc import Iterator, Mapping
from math import inf, prod
from typing import Any

from sruserve.model.text.patterns import is_quick, is_simple

MAX_GROWTH = 1000.0  # sentencepiece's normalizer, after NFKD, may grow a text 726 times
# Growth in UTF-8 bytes. It also applies to pre-tokenizers, which normalize the pieces they split.
_GROWTH = {
    "NFC": 3.0, "NFD": 3.0, "NFKC": 11.0, "NFKD": 11.0, "BertNormalizer": 4.0, "ByteLevel": 2.0,
}  # fmt: skip

_SEQUENCES = ("normalizers", "pretokenizers", "processors")

# Work is counted in look-ups of a short text, about 0.2 µs each.
_BASE_WORK, _STEP_WORK, _MERGE_WORK = 8, 4, 8
_LOOKUP_BYTES = 800  # the look-up of a text of 800 bytes takes twice as long
_WORD_CHARACTERS = 100  # WordPiece's default limit on a word


def growth(tokenizer: Mapping[str, Any]) -> float:
    """Return the largest factor by which normalizers can lengthen a text, in UTF-8 bytes.

    tokenizer: the content of a tokenizer.json.

    Raises `ValueError` if the factor is above `MAX_GROWTH`.
    """
    steps = _normalizing(tokenizer)
    factor = prod(map(_growth, steps))
    if factor > MAX_GROWTH:
        names = ", ".join(str(step.get("type")) for step in steps if _growth(step) > 1)[:200]
        raise ValueError(
            f"its normalizers ({names}) could make a text {factor:,.0f} times as long; the limit "
            f"is {MAX_GROWTH:,.0f} times: remove one of them"
        )
    return factor


def work(tokenizer: Mapping[str, Any]) -> float:
    """Estimate the look-ups for one character of a text; infinite if there is no known bound.

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


def is_slow(tokenizer: Mapping[str, Any]) -> bool:
    """Whether the time of a normalizer's regular expression has no known bound.

    The library normalizes a text without releasing the interpreter, unless it also looks it up.

    tokenizer: the content of a tokenizer.json.
    """
    steps = _steps(tokenizer.get("normalizer"))
    patterns = [step["pattern"].get("Regex") for step in steps if "pattern" in step]
    return not all(pattern is None or is_quick(pattern) for pattern in patterns)


def _lookups(model: Mapping[str, Any]) -> float:
    """Estimate the look-ups for one character of normalized text."""
    affixes = (model.get("continuing_subword_prefix"), model.get("end_of_word_suffix"))
    affix = sum(_size(text or "") for text in affixes)
    kind, entries = model.get("type"), model["vocab"]
    if kind in ("WordLevel", "BPE"):
        return _MERGE_WORK * (1 + affix / _LOOKUP_BYTES)
    if isinstance(entries, list):  # Unigram looks up every entry that can start at a character
        longest = lookups = max((_size(entry[0]) for entry in entries), default=0)
    else:  # WordPiece looks up all prefixes of a word, for each of its pieces
        longest = int(model.get("max_input_chars_per_word", _WORD_CHARACTERS))
        lookups = longest // 2
    return lookups * (1 + (longest + affix) / _LOOKUP_BYTES)


def _normalizing(tokenizer: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*_steps(tokenizer.get("normalizer")), *_steps(tokenizer.get("pre_tokenizer"))]


def _steps(component: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of nested sequences, which may have no type: other fields identify them.

    The library ignores fields that a step does not have, and reads a list as a step's fields in
    their order. It writes no such lists, so they are refused.
    """
    if component is None:
        return
    if not isinstance(component, dict):
        raise ValueError(f"it has {str(component)[:40]!r} for a step; write an object with a type")
    parts = [component[name] for name in _SEQUENCES if name in component]
    named = component.keys() - {"type", *_SEQUENCES} or component.get("type", "Sequence")
    if not parts or named != "Sequence":
        yield component
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
            pattern = 1  # any other regular expression may match between any two characters
        return max(1.0, content / pattern) if pattern else 1.0 + content
    return _GROWTH.get(str(step.get("type")), 1.0)


def _longest_replacement(charsmap: str) -> int:
    """Return the bytes of the longest replacement, in the texts that follow the trie."""
    data = base64.b64decode(charsmap)
    return max(map(len, data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")))


def _size(text: str) -> int:
    return len(text.encode())
