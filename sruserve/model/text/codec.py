"""Vocabularies: text to ids and back, in chunks that may end inside a word."""

import json
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from sruserve.model.errors import FolderError, TextError, brief, faults
from sruserve.model.text.characters import Characters, splits_characters
from sruserve.model.text.decoders import steps_of
from sruserve.model.text.frames import Frame, Ids
from sruserve.model.text.normalized import MAX_NORMALIZED, MAX_UTF8_BYTES, is_too_long
from sruserve.model.text.packed import PackedIds
from sruserve.model.text.piece_cache import PieceCache
from sruserve.model.text.separators import separators, words_of
from sruserve.model.text.subwords import MAX_UNFINISHED, Subwords
from sruserve.model.text.tokenizer_file import TokenizerFile, read_tokenizer

WORDS_FILE, BYTES_FILE = "tokenizer.json", "bytes.json"
_LONG = 4096  # characters from which the tokenizer is faster on a whole text than on its pieces
_PART = 1 << 16  # characters of a long text that are tokenized at a time
_ASCII_SPACES = " \t\n\v\f\r\x1c\x1d\x1e\x1f"  # at which `str.split` splits


class Codec(Protocol):
    """A vocabulary.

    size: number of ids.
    pieces: the UTF-8 bytes that each id adds to a generated text.
    ends: (size), bool: whether an id ends a word, so that the next id adds a space before its
        piece; None: `pieces` have all spaces.
    characters: (size), int64: number of characters that begin in each piece.
    frame: the ids that are around those of a text; None: there are none.
    whole_because: why a text cannot come in chunks; None: it can.
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
    """What each id adds to a text behind `previous`; read it once for each id, in their order."""
    return codec.pieces if codec.ends is None else SpacedPieces(codec, previous)


class Words:
    """A vocabulary of words: a Hugging Face tokenizer that reads each word by itself.

    spaces: the characters between words; see `separators`.
    max_normalized: characters that a word may have once it is normalized.
    """

    def __init__(
        self, file: TokenizerFile, spaces: str, max_normalized: int = MAX_NORMALIZED
    ) -> None:
        self.growth, self._max_normalized = file.growth, max_normalized
        self._longest = int(max_normalized / MAX_UTF8_BYTES / file.growth)  # never too long
        self._tokenizer, self.work = file.tokenizer, file.work
        self.size, self.pieces = len(file.entries), file.written.pieces
        self.characters, self.ends = file.characters, file.written.ends
        self.frame = file.frame
        self.whole_because = None if file.frame is None else file.frame.whole_because
        self.uncut_because: str | None = None
        self._spaces, self._piece = spaces, words_of(spaces)
        self._space = re.compile(f"[{re.escape(spaces)}]")
        self._other_spaces = [space for space in _ASCII_SPACES if space not in spaces]
        self._ids = PieceCache[bytes]()  # int64
        self._places = PieceCache[list[int]]()

    def encode(self, text: str, word: str = "", more: bool = False) -> tuple[Ids, str]:
        if word or more:
            text, word = self._finished(word + text, more)
        if len(text) > self._longest:
            self._check(text)
        if len(text) <= _LONG:
            return self._ids_by_piece(text), word
        return np.concatenate([self._ids_of(part) for part in self._parts(text, _PART)]), word

    def encode_texts(self, texts: Sequence[str]) -> PackedIds:
        if max(map(len, texts), default=0) > min(_LONG, self._longest):
            return PackedIds.joined([self.encode(text)[0] for text in texts])
        split = self._splitter("".join(texts))
        words = list(map(split, texts))
        parts = self._parts_of(list(chain.from_iterable(words)))
        ids = np.frombuffer(bytearray().join(parts), np.int64)
        ends = np.zeros(len(parts) + 1, np.int64)
        np.fromiter(map(len, parts), np.int64, len(parts)).cumsum(out=ends[1:])
        ends = ends[np.cumsum(list(map(len, words)), dtype=np.int64)]
        return PackedIds(ids, (np.diff(ends, prepend=0) // ids.itemsize).tolist())

    def locate(self, text: str, word: str = "", more: bool = False) -> tuple[Ids, Ids, str]:
        word_length = len(word)
        text, word = self._finished(word + text, more)
        if len(text) > self._longest:
            self._check(text)
        # Arrays, because converting a list of a million tuples would block all other threads.
        ids, places = array("q"), array("q")
        for match in self._piece.finditer(text):
            piece_ids, piece_places = self._located(match[0])
            start = match.start() - word_length
            ids.frombytes(piece_ids)
            places.extend([start + place for place in piece_places])
        return np.array(ids, np.int64), np.array(places, np.int64).reshape(-1, 2), word

    def look_up(self, words: Sequence[str]) -> Ids:
        """Return the id of each word as a whole, (words); raises `TextError`.

        A word is put through the normalizers, and not split. A word without an entry has the id of
        unknown words. Long words are refused: normalizers block all other threads meanwhile.
        """
        limit = min(_LONG, self._longest)
        if (longest := max(map(len, words), default=0)) > limit:
            raise TextError(f"a word has {longest:,} characters and may have {limit:,}; shorten it")
        normalizer, number = self._tokenizer.normalizer, self._tokenizer.token_to_id
        unknown = number(getattr(self._tokenizer.model, "unk_token", None) or "")
        ids: dict[str, int] = {}
        for word in dict.fromkeys(words):
            entry = number(word if normalizer is None else normalizer.normalize_str(word))
            number_of_word = unknown if entry is None else entry
            if number_of_word is None:
                raise _unknown(word)
            ids[word] = number_of_word
        return np.array([ids[word] for word in words], np.int64)

    def parts(self, text: str, max_characters: int) -> list[str]:
        return list(self._parts(text, max_characters))

    def _check(self, text: str) -> None:
        """Raise `TextError` if a word is too long once it is normalized."""
        for match in self._piece.finditer(text):
            if is_too_long(self._tokenizer, self.growth, match[0], self._max_normalized):
                raise TextError(
                    f"a word has {len(match[0]):,} characters, and the tokenizer makes more than "
                    f"{self._max_normalized:,} of them: insert white space"
                )

    def _ids_of(self, text: str) -> Ids:
        """Return the ids of a long text."""
        try:
            ids = self._tokenized(text).ids
        except Exception:  # a word has no entry: go by pieces to find it
            return self._ids_by_piece(text)
        # Convert in parts, because each conversion blocks all other threads.
        at = range(0, max(1, len(ids)), _PART)
        return np.concatenate([np.array(ids[i : i + _PART], np.int64) for i in at])

    def _ids_by_piece(self, text: str) -> Ids:
        """Return the ids of a short text, most of whose words are cached."""
        pieces = self._splitter(text)(text)
        return np.frombuffer(bytearray().join(self._parts_of(pieces)), np.int64)

    def _splitter(self, text: str) -> Callable[[str], list[str]]:
        """Return what splits parts of a text into pieces: the faster one if it does the same."""
        if not text.isascii():
            return self._piece.findall
        for space in self._other_spaces:
            if space in text:
                return self._piece.findall
        return str.split

    def _parts_of(self, pieces: Sequence[str]) -> list[bytes]:
        """Return the ids of each piece of text without white space."""
        known = list(map(self._ids.get, pieces))
        if all(known):  # faster than a search for None; few pieces have no ids
            return known  # type: ignore[return-value]
        new, pairs = self._ids_of_new, zip(pieces, known, strict=True)
        return [new(piece) if ids is None else ids for piece, ids in pairs]

    def _ids_of_new(self, piece: str) -> bytes:
        """Return the ids of text without white space."""
        with _named(piece):
            ids = array("q", self._tokenized(piece).ids)
        self._ids.add(piece, ids.tobytes(), len(ids))
        return ids.tobytes()

    def _located(self, piece: str) -> tuple[bytes, list[int]]:
        """Return the ids of text without white space, and begin and end of each, in turn."""
        ids, places = self._ids.get(piece), self._places.get(piece)
        if ids is None or places is None:
            with _named(piece):
                (encoding,) = self._tokenizer.encode_batch([piece], add_special_tokens=False)
            numbers = array("q", encoding.ids)
            ids, count = numbers.tobytes(), len(numbers)
            # `offsets` would build all places in one call, which blocks all other threads.
            places = [at for i in range(count) for at in encoding.token_to_chars(i) or ()]
            self._ids.add(piece, ids, count)
            self._places.add(piece, places, 2 * count)
        return ids, places

    def _finished(self, text: str, more: bool) -> tuple[str, str]:
        """Split off the last word, which the next chunk may continue; returns both."""
        if not more:
            return text, ""
        end = self._after_last_space(text, 0, len(text))
        if len(text) - end > MAX_UNFINISHED:
            raise TextError(
                f"the last word has {len(text) - end:,} characters; the limit is "
                f"{MAX_UNFINISHED:,}: "
                'insert white space or send "more": false'
            )
        return text[:end], text[end:]

    def _parts(self, text: str, max_characters: int) -> Iterator[str]:
        """Cut a text into parts that end with white space.

        Only a word longer than `max_characters` makes a longer part.
        """
        start = 0
        while len(text) - start > max_characters:
            end = self._after_last_space(text, start, start + max_characters)
            if end == start:
                space = self._space.search(text, start + max_characters)
                end = space.end() if space else len(text)
            yield text[start:end]
            start = end
        if start < len(text):
            yield text[start:]

    def _after_last_space(self, text: str, begin: int, end: int) -> int:
        """Return the index after the last white space in `text[begin:end]`; `begin` without any."""
        return max(begin, 1 + max([text.rfind(space, begin, end) for space in self._spaces]))

    def _tokenized(self, text: str) -> Encoding:
        """Return the tokens of a text, without their places.

        Unlike `encode`, `encode_batch_fast` releases the GIL.
        """
        return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0]


@contextmanager
def _named(piece: str) -> Iterator[None]:
    """Raise `TextError` that names the piece if the vocabulary has no entry for it."""
    try:
        yield
    except Exception as error:  # the library raises bare exceptions
        raise _unknown(piece) from error


def _unknown(piece: str) -> TextError:
    return TextError(
        f"the model's vocabulary has no {piece[:100]!r} and no entry for unknown words; remove "
        "or replace it"
    )


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


def make_codec(vocabulary: Mapping[str, bytes], folder: object) -> Codec | None:
    """Make the codec of a model folder's vocabulary files; None: the model takes and returns ids.

    vocabulary: contents by file name. folder: the folder's path, for error messages.

    Raises `FolderError`.
    """
    if WORDS_FILE in vocabulary:
        return tokenizer_codec(vocabulary[WORDS_FILE], f"{folder}/{WORDS_FILE}")
    if BYTES_FILE not in vocabulary:
        return None
    try:
        values = json.loads(vocabulary[BYTES_FILE])
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{folder}/{BYTES_FILE} is not valid JSON: {error}") from error
    if not is_byte_list(values):
        raise FolderError(
            f"{folder}/{BYTES_FILE} must be a JSON list of distinct integers, 0 to 255"
        )
    return Bytes(values)


def tokenizer_codec(content: bytes, source: object, max_normalized: int = MAX_NORMALIZED) -> Codec:
    """Make the codec of a tokenizer.json. source: its name in error messages.

    max_normalized: characters of a text that cannot be cut, once it is normalized.

    Raises `FolderError` that names the part which cannot be honoured.
    """
    file = read_tokenizer(content, source)
    if splits_characters(file):
        return Characters(file)
    steps = {step["type"] for step in steps_of(file.tokenizer.pre_tokenizer)}
    whole = not steps and type(file.tokenizer.model).__name__ in ("BPE", "Unigram")
    if not whole and not steps & {"ByteLevel", "Metaspace"}:
        try:
            spaces = separators(file.tokenizer, file.entries)
        except faults() as error:  # the library raises bare exceptions, and panics
            raise FolderError(f"{source} is not a usable tokenizer.json: {brief(error)}") from error
        if spaces:
            return Words(file, spaces, max_normalized)
    return Subwords(file, max_normalized)


def is_byte_list(values: object) -> bool:
    """Whether a JSON value is a list of distinct bytes, not empty."""
    return (
        isinstance(values, list)
        and all(type(value) is int and 0 <= value < 256 for value in values)
        and 0 < len(set(values)) == len(values)
    )
