"""Vocabularies: text to ids and back, in chunks that may end inside a word."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sruserve.model.text.frames import Frame, Ids
from sruserve.model.text.packed import PackedIds


class Codec(Protocol):
    """A vocabulary.

    size: number of ids.
    pieces: the UTF-8 bytes that each id adds to a generated text.
    ends: (size), bool: whether an id ends a word, so that the next id adds a space before its
        piece; None: `pieces` have all spaces.
    characters: (size), int64: number of characters that begin in each piece.
    frame: the ids that are around those of a text; None: there are none.
    whole_because: why a text cannot arrive in chunks; None: it can.
    uncut_because: the same without the truncation of `frame`.
    work: estimated look-ups of 0.2 µs for a character of a text; infinite if they have no known
        bound.
    growth: the largest factor by which a text is lengthened while it is tokenized, in UTF-8 bytes;
        0: its ids are looked up without the library, which takes little memory.
    """

    size: int
    pieces: tuple[bytes, ...]
    ends: NDArray[np.bool_] | None
    characters: Ids
    frame: Frame | None
    whole_because: str | None
    uncut_because: str | None
    work: float
    growth: float

    def encode(self, text: str, word: str = "", more: bool = False) -> tuple[Ids, str]:
        """Turn the next chunk of a text into ids.

        word: the unfinished word of the previous chunk.
        more: whether another chunk follows; then this chunk's unfinished word is held back.

        Returns the ids, int64, and the unfinished word; raises `TextError`.
        """
        ...

    def locate(self, text: str, word: str = "", more: bool = False) -> tuple[Ids, Ids, str]:
        """Encode as `encode` does, and return each id's place too, as the second of three results.

        Places are (ids, 2), int64: where the id begins and ends, in characters of `text`. Those in
        `word` are negative.
        """
        ...

    def encode_texts(self, texts: Sequence[str]) -> PackedIds:
        """Return the ids of each of several whole texts, as `encode` does."""
        ...

    def parts(self, text: str, max_characters: int) -> list[str]:
        """Cut a text into parts of about `max_characters`, whose ids together are the text's ids.

        Only the last part may leave a word unfinished.
        """
        ...


def token_text(codec: Codec | None, token: int) -> str:
    """Return a token as text; if its bytes are no valid text, escape them as OpenAI does."""
    if codec is None:
        return str(token)
    piece = codec.pieces[token]
    if codec.ends is not None and codec.ends[token]:
        piece += b" "
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def count_characters(codec: Codec | None, known: Ids) -> int:
    """The characters that ids add after the first of them."""
    if codec is None:
        return 0
    count = int(codec.characters[known[1:]].sum())
    return count if codec.ends is None else count + int(codec.ends[known[:-1]].sum())


class SpacedPieces(Sequence[bytes]):
    """What each id adds to a text if words end with spaces; read it in the order of the text.

    previous: the id before the text; -1: none.
    """

    def __init__(self, codec: Codec, previous: int) -> None:
        self._codec, self._previous = codec, previous

    def __len__(self) -> int:
        return self._codec.size

    def __getitem__(self, token: Any) -> Any:
        before, self._previous = self._previous, token
        ends, piece = self._codec.ends, self._codec.pieces[token]
        return b" " + piece if before >= 0 and ends is not None and ends[before] else piece


def pieces_after(codec: Codec, previous: int) -> Sequence[bytes]:
    """What each id adds to a text after `previous`; read it once for each id, in their order."""
    return codec.pieces if codec.ends is None else SpacedPieces(codec, previous)
