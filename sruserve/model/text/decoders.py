"""What each entry of a tokenizer.json adds to a text: its decoder, entry by entry."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders

SPACE_MARK = "\u2581"  # stands for a space in the entries of some tokenizers
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

Step = dict[str, Any]


@dataclass(frozen=True)
class Written:
    """The text of entries that follow others.

    pieces: the UTF-8 bytes that each id adds.
    ends: (size), bool: whether the id ends a word, so that a space is before the next one;
        None: `pieces` have all spaces.
    """

    pieces: tuple[bytes, ...]
    ends: NDArray[np.bool_] | None = None


def state_of(component: Any) -> Step:
    """The description of a tokenizer's component; empty without one."""
    described: Step = {} if component is None else json.loads(component.__getstate__())
    return described


def steps_of(component: Any) -> list[Step]:
    """The steps of a tokenizer's component, without nesting."""
    described = state_of(component)
    return [] if not described else _flat(described)


def written(tokenizer: Tokenizer, entries: Sequence[str]) -> Written:
    """What a tokenizer's decoder makes of its entries, apart from the first one of a text.

    Raises `ValueError` that names the step which cannot decode entry by entry.
    """
    steps = steps_of(tokenizer.decoder) or _implied(tokenizer)
    if not steps:  # the library joins such entries with spaces
        return Written(tuple(f" {entry}".encode() for entry in entries))
    if any(step["type"] == "BPEDecoder" for step in steps):
        return _suffixed(steps, entries)
    return Written(tuple(map(_chain(steps), entries)))


def _flat(described: Step) -> list[Step]:
    for name in ("decoders", "normalizers", "pretokenizers", "processors"):
        if name in described:
            return [step for part in described[name] for step in _flat(part)]
    return [described]


def _implied(tokenizer: Tokenizer) -> list[Step]:
    """The decoder of a tokenizer without one, if its other parts mark where words begin."""
    for step in steps_of(tokenizer.pre_tokenizer):
        if step["type"] in ("ByteLevel", "Metaspace"):
            return [step]
    to_mark = {"pattern": {"String": " "}, "content": SPACE_MARK}
    for step in steps_of(tokenizer.normalizer):
        if step["type"] == "Replace" and step | to_mark == step:
            back = {"pattern": {"String": SPACE_MARK}, "content": " "}
            return [{"type": "Replace"} | back, {"type": "ByteFallback"}]
    model = tokenizer.model
    if suffix := getattr(model, "end_of_word_suffix", None):
        return [{"type": "BPEDecoder", "suffix": suffix}]
    if prefix := getattr(model, "continuing_subword_prefix", None):
        return [{"type": "WordPiece", "prefix": prefix, "cleanup": False}]
    return []


def _suffixed(steps: Sequence[Step], entries: Sequence[str]) -> Written:
    """The text of entries whose suffix ends a word."""
    if [step["type"] for step in steps if step["type"] != "Fuse"] != ["BPEDecoder"]:
        raise _unknown("BPEDecoder beside other steps")
    suffix = next(step["suffix"] for step in steps if "suffix" in step)
    if not suffix:
        raise _unknown("BPEDecoder without a suffix")
    pieces = [entry.removesuffix(suffix).replace(suffix, " ").encode() for entry in entries]
    return Written(tuple(pieces), np.array([entry.endswith(suffix) for entry in entries], np.bool_))


def _chain(steps: Sequence[Step]) -> Callable[[str], bytes]:
    """The decoder of one entry, which is not the first of a text."""
    texts: list[Callable[[str], str]] = []
    to_bytes: Callable[[str], bytes] = _utf8
    fused, last = False, ""
    for step in steps:
        kind = step["type"]
        if last == "ByteLevel" and kind not in ("Fuse", "Strip"):
            raise _unknown(f"{kind} after ByteLevel")
        if kind == "Fuse":
            fused = True
        elif kind == "Strip" and (fused or last == "ByteLevel"):
            if step["stop"]:  # `start` concerns the first entry alone
                raise _unknown("Strip at the end of a text")
        elif kind == "Replace" and (not fused or len(step["pattern"].get("String", "")) == 1):
            texts.append(_replacing(step))
        elif fused:
            raise _unknown(f"{kind} after Fuse")
        elif kind == "ByteLevel":
            to_bytes, last = _byte_level(), kind
        elif kind == "ByteFallback":
            to_bytes = _byte_or_text
        else:
            texts.append(_mapping(step))
    decode = to_bytes

    def piece(entry: str) -> bytes:
        if decode is _byte_or_text and _BYTE.fullmatch(entry):
            return decode(entry)
        for text in texts:
            entry = text(entry)
        return decode(entry)

    return piece


def _mapping(step: Step) -> Callable[[str], str]:
    """A step that maps each entry by itself, unless it is the first."""
    match step["type"]:
        case "Metaspace":
            return lambda entry: entry.replace(step["replacement"], " ")
        case "WordPiece":
            word_piece = decoders.WordPiece(step["prefix"], step["cleanup"])
            return lambda entry: str(word_piece.decode(["x", entry]))[1:]
        case "Strip":
            strip = decoders.Strip(step["content"], step["start"], step["stop"])
            return lambda entry: str(strip.decode([entry]))
    raise _unknown(step["type"])


def _replacing(step: Step) -> Callable[[str], str]:
    pattern = step["pattern"]
    of = pattern["String"] if "String" in pattern else Regex(pattern["Regex"])
    replace = decoders.Replace(of, step["content"])
    return lambda entry: str(replace.decode([entry]))


def _utf8(entry: str) -> bytes:
    return entry.encode()


def _byte_or_text(entry: str) -> bytes:
    byte = _BYTE.fullmatch(entry)
    return entry.encode() if byte is None else bytes([int(byte[1], 16)])


def _byte_level() -> Callable[[str], bytes]:
    """The bytes that characters stand for in GPT-2's vocabulary and its like."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    byte_of = {chr(byte): byte for byte in printable}
    byte_of |= {chr(256 + number): byte for number, byte in enumerate(others)}

    def decode(entry: str) -> bytes:
        values = [byte_of.get(character, -1) for character in entry]
        return entry.encode() if -1 in values else bytes(values)

    return decode


def _unknown(what: str) -> ValueError:
    return ValueError(f"its decoder {what} does not decode entry by entry; change the decoder")
