"""Spell a file's bytes as a vocabulary's ids, and as literal bytes where it has none for them."""

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sruserve.model.errors import TextError
from sruserve.model.folder import Model
from sruserve.model.text.codec import Codec

Symbols = NDArray[np.int64]  # an id, or ~byte for a literal byte, which is negative

_BYTES = 256
_TEXT = re.compile(  # well-formed UTF-8 (Unicode 16.0, table 3-7)
    rb"(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef]"
    rb"[\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3]"
    rb"[\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})+"
)


class Speller:
    """Turns symbols back into bytes, in their order."""

    def __init__(self, alphabet: "Alphabet") -> None:
        self._alphabet, self._spaced = alphabet, False

    def spell(self, symbol: int) -> bytes:
        """Return the bytes that a symbol adds."""
        if symbol < 0:
            self._spaced = False
            return bytes((~symbol,))
        piece = self.piece(symbol)
        ends = self._alphabet.ends
        self._spaced = ends is not None and bool(ends[symbol])
        return piece

    def piece(self, token: int) -> bytes:
        """Return the bytes that an id would add."""
        piece = self._alphabet.pieces[token]
        return b" " + piece if self._spaced else piece


class Alphabet:
    """The ids of a model as pieces of files; without a vocabulary, an id below 256 is a byte.

    pieces: the bytes of each id. ends: (ids), bool, or None: see `Codec`.
    """

    def __init__(self, model: Model) -> None:
        self._codec = model.codec
        if model.codec is not None:
            self.pieces, self.ends = model.codec.pieces, model.codec.ends
        else:
            size = model.config.vocab_size or 0
            self.pieces = tuple(bytes([i]) if i < _BYTES else b"" for i in range(size))
            self.ends = None
        self._id_of_byte: Symbols | None = None
        if self.ends is None and all(len(piece) <= 1 for piece in self.pieces):
            self._id_of_byte = ~np.arange(_BYTES)
            for token in reversed(range(len(self.pieces))):
                if self.pieces[token]:
                    self._id_of_byte[self.pieces[token][0]] = token

    def symbols(self, data: bytes) -> Symbols:
        """Return the symbols of a file's bytes; spelled in order, they give exactly these bytes."""
        if self._id_of_byte is not None:
            return np.asarray(self._id_of_byte[np.frombuffer(data, np.uint8)])
        symbols, speller, place = list[int](), Speller(self), 0
        for token, begin, end in self._located(data):
            if not self._matches(speller, token, data, place) and place < begin:
                self._add_literals(symbols, speller, data[place:begin])
                place = begin
            if self._matches(speller, token, data, place):
                symbols.append(token)
                place += len(speller.spell(token))
            elif place < end:
                self._add_literals(symbols, speller, data[place:end])
                place = end
        self._add_literals(symbols, speller, data[place:])
        return np.array(symbols, np.int64)

    def _matches(self, speller: Speller, token: int, data: bytes, place: int) -> bool:
        """Whether an id adds what the data have at a place. An id without bytes never does."""
        piece = speller.piece(token)
        return bool(piece) and data.startswith(piece, place)

    def _add_literals(self, symbols: list[int], speller: Speller, data: bytes) -> None:
        for byte in data:
            symbols.append(~byte)
            speller.spell(~byte)

    def _located(self, data: bytes) -> Iterator[tuple[int, int, int]]:
        """Yield the ids of all text in the data, each with its begin and end in bytes."""
        assert self._codec is not None
        for match in _TEXT.finditer(data):
            text = match[0].decode()
            first_bytes = np.frombuffer(match[0], np.uint8) & 0xC0 != 0x80
            starts = [*np.flatnonzero(first_bytes).tolist(), len(match[0])]
            for token, begin, end in _ids(self._codec, text, 0):
                yield token, match.start() + starts[begin], match.start() + starts[end]


def literals(data: bytes) -> Symbols:
    """Return bytes as literal bytes."""
    return ~np.frombuffer(data, np.uint8).astype(np.int64)


def _ids(codec: Codec, text: str, offset: int) -> Iterator[tuple[int, int, int]]:
    """Yield the ids of a text, but of characters that the vocabulary refuses.

    offset: the place of the text's first character.
    """
    try:
        ids, places, _ = codec.locate(text)
    except TextError:
        if len(text) > 1:
            middle = _middle(text)
            yield from _ids(codec, text[:middle], offset)
            yield from _ids(codec, text[middle:], offset + middle)
        return
    for token, (begin, end) in zip(ids.tolist(), places.tolist(), strict=True):
        yield token, offset + begin, offset + end


def _middle(text: str) -> int:
    """Return where to cut a text in two: at the space that is nearest to its middle, if any."""
    middle = len(text) // 2
    before, after = text.rfind(" ", 1, middle + 1), text.find(" ", middle)
    places = [place for place in (before, after) if place > 0]
    return min(places, key=lambda place: abs(place - middle), default=middle)
