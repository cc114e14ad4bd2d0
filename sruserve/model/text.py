"""Vocabularies: text to ids and back, and what a chunk's end leaves unfinished."""

import json
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from sruserve.model.errors import FolderError, TextError, faults
from sruserve.model.normalizers import growth, work
from sruserve.model.pieces import Pieces

Ids = NDArray[np.int64]

WORDS_FILE, BYTES_FILE = "tokenizer.json", "bytes.json"
MAX_UNFINISHED = 65_536  # characters of a word that no white space ends
_PROBES = ("ab cd", 'it\'s 3.5\n"x"', "A\tb.c,  d ")
_LONG = 4096  # characters that the tokenizer takes faster whole than piece by piece
_PART = 1 << 16  # characters of a long text that are made into ids at a time
_NORMALIZED = 1 << 26  # characters that normalizers may make of a word
_LONGEST_ENTRY = 1024  # bytes, because replies repeat entries
_LIBRARY_WORDS = 1024
_PROBED = 64
_SPACES = " \t\n\v\f\r"
_PIECE, _SPACE = re.compile(f"[^{_SPACES}]+"), re.compile(f"[{_SPACES}]")


class Codec(Protocol):
    """A vocabulary.

    size: how many ids there are.
    pieces: the UTF-8 bytes that each id adds to a generated text.
    characters: (size), int64: how many characters begin in each piece.
    work: about how many look-ups of 0.2 µs a character of a text may take; infinite if the
        vocabulary's author alone bounds that.
    """

    size: int
    pieces: tuple[bytes, ...]
    characters: Ids
    work: float

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

    def parts(self, text: str, most: int) -> list[str]:
        """Cut a text where its ids are those of its parts, into about `most` characters each.

        Only the last part may leave a word unfinished.
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
    """Words by a Hugging Face tokenizer that never looks across white space.

    content: of a tokenizer.json. source: what messages call it.
    """

    def __init__(self, content: bytes, source: object = WORDS_FILE) -> None:
        try:
            described = json.loads(content)
            self._longest = int(_NORMALIZED / growth(described))  # before the library uses them
            self.work = work(described)
            del described
            self._tokenizer = Tokenizer.from_buffer(content)
            self._tokenizer.no_padding()
            self._tokenizer.no_truncation()
            _bound_cache(self._tokenizer.model)
            self.size: int = self._tokenizer.get_vocab_size()
            words = [self._tokenizer.id_to_token(i) for i in range(self.size)]
            _check_entries(words)
            self._ids, self._places = Pieces(), Pieces()
            own = " ".join(str(word) for word in words[:_PROBED])
            joins = any(self._joins(probe) for probe in (*_PROBES, own))
        except faults() as error:  # the library raises bare exceptions, and panics
            raise FolderError(f"{source} is no tokenizer.json of use: {error}") from error
        if None in words:
            raise FolderError(f"{source} must number its {self.size} entries from 0 without gaps")
        self.pieces = tuple(f" {word}".encode() for word in words)
        self.characters: Ids = np.array([len(piece.decode()) for piece in self.pieces], np.int64)
        if joins:
            raise FolderError(
                f"{source} joins text across white space, so a text's chunks would not give the "
                "same ids as the whole; use a tokenizer that splits on white space first"
            )

    def encode(self, text: str, word: str = "", more: bool = False) -> tuple[Ids, str]:
        text, word = _finished(word + text, more)
        self._check(text)
        if len(text) <= _LONG:
            return np.array(self._ids_by_piece(text), np.int64), word
        return np.concatenate([self._ids_of(part) for part in _parts(text, _PART)]), word

    def locate(self, text: str, word: str = "", more: bool = False) -> tuple[Ids, Ids, str]:
        held = len(word)
        text, word = _finished(word + text, more)
        self._check(text)
        # arrays, because to make one of a list of a million tuples would stop all other threads
        ids, places = array("q"), array("q")
        for match in _PIECE.finditer(text):
            found, within = self._located(match[0])
            start = match.start() - held
            ids.extend(found)
            places.extend([start + place for place in within])
        return np.array(ids, np.int64), np.array(places, np.int64).reshape(-1, 2), word

    def parts(self, text: str, most: int) -> list[str]:
        return list(_parts(text, most))

    def _check(self, text: str) -> None:
        """Raise `TextError` if normalizers might make one of its words too long."""
        if len(text) <= self._longest:
            return
        longest = max((len(match[0]) for match in _PIECE.finditer(text)), default=0)
        if longest > self._longest:
            raise TextError(
                f"a word has {longest:,} characters, and may have {self._longest:,} with this "
                "model's tokenizer; put white space into it"
            )

    def _joins(self, probe: str) -> bool:
        """Whether a text's ids are not those of its pieces; unknown words are left out."""
        parts: list[int] = []

        def known(piece: re.Match[str]) -> str:
            try:
                parts.extend(self._ids_of_new(piece[0]))
            except TextError:
                return ""
            return piece[0]

        return self._tokenized(_PIECE.sub(known, probe)).ids != parts

    def _ids_of(self, text: str) -> Ids:
        """The ids of a long text."""
        try:
            ids = self._tokenized(text).ids
        except Exception:  # a word has no entry: the pieces say which
            ids = self._ids_by_piece(text)
        # piece by piece, because all other threads wait for each
        at = range(0, max(1, len(ids)), _PART)
        return np.concatenate([np.array(ids[i : i + _PART], np.int64) for i in at])

    def _ids_by_piece(self, text: str) -> list[int]:
        """The ids of a short text, most of whose words were seen before."""
        ids: list[int] = []
        known = self._ids.get
        for piece in _PIECE.findall(text):
            found = known(piece)
            ids += self._ids_of_new(piece) if found is None else found
        return ids

    def _ids_of_new(self, piece: str) -> list[int]:
        """The ids of text without white space."""
        with _named(piece):
            ids: list[int] = self._tokenized(piece).ids
        self._ids.keep(piece, ids)
        return ids

    def _located(self, piece: str) -> tuple[list[int], list[int]]:
        """The ids of text without white space, and where in it each begins and ends, by turns."""
        ids, places = self._ids.get(piece), self._places.get(piece)
        if ids is None or places is None:
            with _named(piece):
                (found,) = self._tokenizer.encode_batch([piece], add_special_tokens=False)
            ids = found.ids
            # `offsets` would make all of them in one go, and hold up all other threads
            places = [at for i in range(len(ids)) for at in found.token_to_chars(i) or ()]
            self._ids.keep(piece, ids)
            self._places.keep(piece, places)
        return ids, places

    def _tokenized(self, text: str) -> Encoding:
        """The tokens of a text, without their places.

        Unlike `encode`, `encode_batch_fast` leaves the interpreter to other threads.
        """
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0]


def _check_entries(words: Sequence[str | None]) -> None:
    """Raise `ValueError` if one is too long."""
    for number, word in enumerate(words):
        if word is not None and (size := len(word.encode())) > _LONGEST_ENTRY:
            raise ValueError(
                f"entry {number} ({word[:40]!r}…) has {size:,} bytes and may have "
                f"{_LONGEST_ENTRY:,}"
            )


def _bound_cache(model: Any) -> None:
    """Bound what the library keeps of words, up to 14 kB each, from 10,000 of them."""
    if hasattr(model, "_resize_cache"):  # models that look words up have no cache
        model._resize_cache(_LIBRARY_WORDS)


@contextmanager
def _named(piece: str) -> Iterator[None]:
    """Say which piece of a text has no entry."""
    try:
        yield
    except Exception as error:  # the library raises bare exceptions
        raise TextError(
            f"the model's vocabulary has no {piece[:100]!r}, and no entry for unknown words; leave "
            "it out or replace it"
        ) from error


class Bytes:
    """A vocabulary of bytes: `values[id]` is the byte behind an id."""

    work = 1.0

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

    def parts(self, text: str, most: int) -> list[str]:
        """The whole text, which takes little time."""
        del most
        return [text]


def _finished(text: str, more: bool) -> tuple[str, str]:
    """The text up to the word that may go on, and that word."""
    if not more:
        return text, ""
    end = _behind_last_space(text, 0, len(text))
    if len(text) - end > MAX_UNFINISHED:
        raise TextError(f'no white space in {len(text) - end} characters: send "more": false')
    return text[:end], text[end:]


def _parts(text: str, most: int) -> Iterator[str]:
    """A text in parts that end with white space, few of them longer than `most`.

    Only a word that is longer itself makes a longer part.
    """
    at = 0
    while len(text) - at > most:
        end = _behind_last_space(text, at, at + most)
        if end == at:
            found = _SPACE.search(text, at + most)
            end = found.end() if found else len(text)
        yield text[at:end]
        at = end
    if at < len(text):
        yield text[at:]


def _behind_last_space(text: str, begin: int, end: int) -> int:
    """Where the text goes on behind its last white space; `begin` if there is none."""
    return max(begin, 1 + max([text.rfind(space, begin, end) for space in _SPACES]))


def make_codec(vocabulary: Mapping[str, bytes], folder: object) -> Codec | None:
    """The codec of the vocabulary files in a model folder; None: the model takes and returns ids.

    vocabulary: contents by file name.
    """
    if WORDS_FILE in vocabulary:
        return Words(vocabulary[WORDS_FILE], f"{folder}/{WORDS_FILE}")
    if BYTES_FILE not in vocabulary:
        return None
    try:
        values = json.loads(vocabulary[BYTES_FILE])
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{folder}/{BYTES_FILE} is no JSON of use: {error}") from error
    if not is_byte_list(values):
        raise FolderError(f"{folder}/{BYTES_FILE} must be a JSON list of different bytes, 0 to 255")
    return Bytes(values)


def is_byte_list(values: object) -> bool:
    """Whether a JSON value lists different bytes."""
    return (
        isinstance(values, list)
        and all(type(value) is int and 0 <= value < 256 for value in values)
        and 0 < len(set(values)) == len(values)
    )
