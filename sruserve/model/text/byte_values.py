"""Vocabularies of bytes."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sruserve.model.errors import TextError
from sruserve.model.text.frames import Frame, Ids
from sruserve.model.text.packed import PackedIds


class Bytes:
    """A vocabulary of bytes: `values[id]` is the byte of an id."""

    work, growth = 1.0, 0.0
    ends: NDArray[np.bool_] | None = None
    frame: Frame | None = None
    whole_because: str | None = None
    uncut_because: str | None = None

    def __init__(self, values: list[int]) -> None:
        self.size = len(values)
        self.pieces = tuple(bytes([value]) for value in values)
        self.characters: Ids = np.array([value & 0xC0 != 0x80 for value in values], np.int64)
        self._id_of = np.full(256, -1, np.int64)
        self._id_of[values] = np.arange(len(values))

    def encode(self, text: str, word: str = "", more: bool = False) -> tuple[Ids, str]:
        del more  # a byte is never unfinished
        data = np.frombuffer((word + text).encode(), np.uint8)
        ids: Ids = self._id_of[data]
        if len(ids) and ids.min() < 0:
            place = int(ids.argmin())
            character = data[place:].tobytes().decode(errors="replace")[0]
            raise TextError(
                f"the model's vocabulary has no {character!r} (byte {data[place]:#04x}, at byte "
                f"{place} of the text); remove or replace it"
            )
        return ids, ""

    def encode_texts(self, texts: Sequence[str]) -> PackedIds:
        return PackedIds.joined([self.encode(text)[0] for text in texts])

    def locate(self, text: str, word: str = "", more: bool = False) -> tuple[Ids, Ids, str]:
        """See `Codec.locate`; every byte of a character has the character's place."""
        ids, rest = self.encode(text, word, more)
        data = np.frombuffer((word + text).encode(), np.uint8)
        first: Ids = np.cumsum(data & 0xC0 != 0x80, dtype=np.int64) - 1 - len(word)
        return ids, np.stack([first, first + 1], 1), rest

    def parts(self, text: str, max_characters: int) -> list[str]:
        """Return the text in one part, because encoding bytes takes little time."""
        del max_characters
        return [text]


def is_byte_list(values: object) -> bool:
    """Whether a JSON value is a list of distinct bytes, not empty."""
    return (
        isinstance(values, list)
        and all(type(value) is int and 0 <= value < 256 for value in values)
        and 0 < len(set(values)) == len(values)
    )
