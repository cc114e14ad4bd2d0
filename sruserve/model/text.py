"""Vocabularies: text to ids and back, and what a chunk's end leaves unfinished."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from sruserve.model.errors import FolderError, TextError

Ids = NDArray[np.int64]

WORDS_FILE, BYTES_FILE = "tokenizer.json", "bytes.json"
MAX_UNFINISHED = 65_536  # characters of a word that no white space ends
_PROBES = ("ab cd", 'it\'s 3.5\n"x"', "A\tb.c,  d ")
_LONG = 4096  # characters that the tokenizer takes faster whole than piece by piece
_MOST_KNOWN = 100_000
_PROBED = 64
_PIECE = re.compile(r"[^ \t\n\v\f\r]+")
_LAST_SPACE = re.compile(r".*[ \t\n\v\f\r]", re.DOTALL)


class Codec(Protocol):
    """A vocabulary.

    size: how many ids there are.
    pieces: the UTF-8 bytes that each id adds to a generated text.
    characters: (size), int64: how many characters begin in each piece.
    """

    size: int
    pieces: tuple[bytes, ...]
    characters: Ids

    def encode(self, text: str, word: str = "", more: bool = False) -> tuple[Ids, str]:
        """Turn the next chunk of a text into ids.

        word: the unfinished word that the last chunk left.
        more: hold back this chunk's unfinished word.

        Returns the ids and the unfinished word; raises `TextError`.
        """
        ...

    def locate(self, text: str, word: str = "", more: bool = False) -> tuple[Ids, Ids, str]:
        """As `encode`, with the place of each id: (ids, 2), int64, where it begins and ends.

        Places count the characters of `text`; in `word` they are negative.
        """
        ...


def token_text(codec: Codec | None, token: int) -> str:
    """A token as text; one that is no text alone as its bytes, in OpenAI's way."""
    if codec is None:
        return str(token)
    piece = codec.pieces[token]
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


class Words:
    """Words by a Hugging Face tokenizer that never looks across white space."""

    def __init__(self, path: Path) -> None:
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
            self._tokenizer.no_padding()
            self._tokenizer.no_truncation()
            self.size: int = self._tokenizer.get_vocab_size()
            words = [self._tokenizer.id_to_token(i) for i in range(self.size)]
            self._known: dict[str, _Piece] = {}
            own = " ".join(str(word) for word in words[:_PROBED])
            joins = any(self._joins(probe) for probe in (*_PROBES, own))
        except Exception as error:  # the library raises bare exceptions
            raise FolderError(f"{path} is no tokenizer.json of use: {error}") from error
        if None in words:
            raise FolderError(f"{path} must number its {self.size} entries from 0 without gaps")
        self.pieces = tuple(f" {word}".encode() for word in words)
        self.characters: Ids = np.array([len(piece.decode()) for piece in self.pieces], np.int64)
        if joins:
            raise FolderError(
                f"{path} joins text across white space, so a text's chunks would not give the same "
                "ids as the whole; use a tokenizer that splits on white space first"
            )

    def encode(self, text: str, word: str = "", more: bool = False) -> tuple[Ids, str]:
        text, word = _finished(word + text, more)
        if len(text) > _LONG:
            with suppress(Exception):  # where a word has no entry, the pieces say which
                return np.array(self._tokenized(text)[0], np.int64), word
        ids: list[int] = []
        for piece in _PIECE.findall(text):
            ids += self._piece(piece)[0]
        return np.array(ids, np.int64), word

    def locate(self, text: str, word: str = "", more: bool = False) -> tuple[Ids, Ids, str]:
        held = len(word)
        text, word = _finished(word + text, more)
        ids: list[int] = []
        places: list[tuple[int, int]] = []
        for match in _PIECE.finditer(text):
            found, within = self._piece(match[0])
            start = match.start() - held
            ids += found
            places += [(start + first, start + end) for first, end in within]
        return np.array(ids, np.int64), np.array(places, np.int64).reshape(-1, 2), word

    def _joins(self, probe: str) -> bool:
        """Whether a text's ids are not those of its pieces; unknown words are left out."""
        parts: list[int] = []

        def known(piece: re.Match[str]) -> str:
            try:
                parts.extend(self._piece(piece[0])[0])
            except TextError:
                return ""
            return piece[0]

        return self._tokenized(_PIECE.sub(known, probe))[0] != parts

    def _piece(self, piece: str) -> "_Piece":
        """The ids of text without white space. Pieces come again, and are tokenised only once."""
        known = self._known.get(piece)
        if known is None:
            try:
                known = self._tokenized(piece)
            except Exception as error:  # the library raises bare exceptions
                raise TextError(
                    f"the model's vocabulary has no {piece[:100]!r}, and no entry for unknown "
                    "words; leave it out or replace it"
                ) from error
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[piece] = known
        return known

    def _tokenized(self, text: str) -> "_Piece":
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return found.ids, found.offsets


class Bytes:
    """A vocabulary of bytes: `values[id]` is the byte behind an id."""

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
                f"{place} of the text); leave it out or replace it"
            )
        return ids, ""

    def locate(self, text: str, word: str = "", more: bool = False) -> tuple[Ids, Ids, str]:
        """Every byte of a character has the character's place."""
        ids, rest = self.encode(text, word, more)
        data = np.frombuffer((word + text).encode(), np.uint8)
        first: Ids = np.cumsum(data & 0xC0 != 0x80, dtype=np.int64) - 1 - len(word)
        return ids, np.stack([first, first + 1], 1), rest


_Piece = tuple[list[int], list[tuple[int, int]]]  # ids, and where in the piece each of them lies


def _finished(text: str, more: bool) -> tuple[str, str]:
    """The text up to the word that may go on, and that word."""
    if not more:
        return text, ""
    finished = _LAST_SPACE.match(text)
    end = finished.end() if finished else 0
    if len(text) - end > MAX_UNFINISHED:
        raise TextError(f'no white space in {len(text) - end} characters: send "more": false')
    return text[:end], text[end:]


def read_codec(folder: Path) -> Codec | None:
    """The vocabulary of a model folder, or None: the model takes and returns ids."""
    if (folder / WORDS_FILE).exists():
        return Words(folder / WORDS_FILE)
    if not (folder / BYTES_FILE).exists():
        return None
    try:
        values = json.loads((folder / BYTES_FILE).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise FolderError(f"{folder / BYTES_FILE} is no JSON of use: {error}") from error
    if not is_byte_list(values):
        raise FolderError(f"{folder / BYTES_FILE} must be a JSON list of different bytes, 0 to 255")
    return Bytes(values)


def is_byte_list(values: object) -> bool:
    """Whether a JSON value lists different bytes."""
    return (
        isinstance(values, list)
        and all(type(value) is int and 0 <= value < 256 for value in values)
        and 0 < len(set(values)) == len(values)
    )
