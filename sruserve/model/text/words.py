"""Vocabularies of words: a tokenizer that reads each word by itself."""

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import numpy as np
from tokenizers import Encoding

from sruserve.model.errors import TextError
from sruserve.model.text.frames import Ids
from sruserve.model.text.normalized import MAX_NORMALIZED, MAX_UTF8_BYTES, is_too_long
from sruserve.model.text.packed import PackedIds
from sruserve.model.text.piece_cache import PieceCache
from sruserve.model.text.separators import words_of
from sruserve.model.text.subwords import MAX_UNFINISHED
from sruserve.model.text.tokenizer_file import TokenizerFile

_LONG = 4096  # characters from which the tokenizer is faster on a whole text than on its pieces
_PART = 1 << 16  # characters of a long text that are tokenized at a time
_ASCII_SPACES = " \t\n\v\f\r\x1c\x1d\x1e\x1f"  # at which `str.split` splits


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
                    f"a word has {len(match[0]):,} characters, and the tokenizer may make more "
                    f"than {self._max_normalized:,} of them: insert white space"
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
