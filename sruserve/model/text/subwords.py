"""Vocabularies of tokenizers that do not read each word by itself, such as ByteLevel, Metaspace."""

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from sruserve.model.errors import TextError
from sruserve.model.text.cuts import cuts_of
from sruserve.model.text.frames import Ids
from sruserve.model.text.normalized import MAX_NORMALIZED, is_too_long
from sruserve.model.text.packed import PackedIds
from sruserve.model.text.tokenizer_file import TokenizerFile

MAX_UNFINISHED = 65_536  # characters of a word without a space after it
_PART = 1 << 16  # characters of a long text that are tokenized at a time


class Subwords:
    """A tokenizer that reads texts as a whole, or up to places where its parts allow a cut.

    A chunk's unfinished word begins before its space, or after it if the tokenizer adds it again.

    max_normalized: characters that a text without a cut may have once it is normalized.
    """

    def __init__(self, file: TokenizerFile, max_normalized: int = MAX_NORMALIZED) -> None:
        self._tokenizer = file.tokenizer
        self._tokenizer.post_processor = None  # its places of the first id depend on the chunk
        self._cuts = cuts_of(file.tokenizer, file.entries, is_slow=file.is_slow)
        self.growth, self._max_normalized = file.growth, max_normalized
        self._is_slow = file.is_slow
        self.size, self.work, self.frame = len(file.entries), file.work, file.frame
        self.pieces, self.ends = file.written.pieces, file.written.ends
        self.characters = file.characters
        framed = None if file.frame is None else file.frame.whole_because
        self.uncut_because = self._cuts.whole_because
        self.whole_because = framed or self.uncut_because

    def encode(self, text: str, word: str = "", more: bool = False) -> tuple[Ids, str]:
        text, word = self._finished(word + text, more)
        ids = [np.zeros(0, np.int64)]
        for part in self._parts(text, _PART):
            self._check(part)
            with _in_the_vocabulary():
                (encoding,) = self._tokenizer.encode_batch_fast([part], add_special_tokens=False)
            part_ids = encoding.ids
            # Convert in slices, because each conversion blocks all other threads.
            ids += [
                np.array(part_ids[i : i + _PART], np.int64) for i in range(0, len(part_ids), _PART)
            ]
        return np.concatenate(ids), word

    def encode_texts(self, texts: Sequence[str]) -> PackedIds:
        return PackedIds.joined([self.encode(text)[0] for text in texts])

    def locate(self, text: str, word: str = "", more: bool = False) -> tuple[Ids, Ids, str]:
        start = -len(word)
        text, word = self._finished(word + text, more)
        ids, places = array("q"), array("q")
        for part in self._parts(text, _PART):
            self._check(part)
            with _in_the_vocabulary():
                (encoding,) = self._tokenizer.encode_batch([part], add_special_tokens=False)
            ids.extend(encoding.ids)
            # `offsets` would build all places in one call, which blocks all other threads.
            for number in range(len(encoding)):
                begin, end = self._place(part, *(encoding.token_to_chars(number) or (0, 0)))
                places.extend((start + begin, start + end))
            start += len(part)
        return np.array(ids, np.int64), np.array(places, np.int64).reshape(-1, 2), word

    def parts(self, text: str, max_characters: int) -> list[str]:
        return list(self._parts(text, max_characters))

    def _finished(self, text: str, more: bool) -> tuple[str, str]:
        """Split off what the next chunk may change; returns both."""
        if not more:
            return text, ""
        at = text.rfind(" ")
        while at > 0 and len(text) - at <= MAX_UNFINISHED + 1:
            if self._cuts.allow(text, at):
                return text[:at], text[at + self._cuts.drops_space :]
            at = text.rfind(" ", 0, at)
        if len(text) > MAX_UNFINISHED:
            raise TextError(
                f"the last words have more than {MAX_UNFINISHED:,} characters that the next chunk "
                'may change: insert spaces or send "more": false'
            )
        return "", text

    def _parts(self, text: str, max_characters: int) -> Iterator[str]:
        """Cut a text into parts that begin with a space, apart from the first one."""
        start = 0
        if self._cuts.whole_because is None and not self._cuts.drops_space:
            while len(text) - start > max_characters:
                at = text.find(" ", start + max_characters)
                while at > 0 and not self._cuts.allow(text, at):
                    at = text.find(" ", at + 1)
                if at < 0:
                    break
                yield text[start:at]
                start = at
        if start < len(text):
            yield text[start:]

    def _check(self, part: str) -> None:
        """Raise `TextError` if a text that cannot be cut is too long once it is normalized."""
        if is_too_long(
            self._tokenizer, self.growth, part, self._max_normalized, is_slow=self._is_slow
        ):
            raise TextError(
                f"a text without a place to cut has {len(part):,} characters, and the tokenizer "
                f"may make more than {self._max_normalized:,} of them: insert spaces or send less"
            )

    def _place(self, text: str, begin: int, end: int) -> tuple[int, int]:
        """A place without the white space around it, unless it has nothing else."""
        inside = text[begin:end]
        if inside and not inside.isspace():
            return end - len(inside.lstrip()), begin + len(inside.rstrip())
        if self._cuts.drops_space and inside == " " and text[end : end + 1] != " ":
            # as that of a prepended space, which has the place of the character after it
            return min(end, len(text) - 1), min(end + 1, len(text))
        return begin, end


@contextmanager
def _in_the_vocabulary() -> Iterator[None]:
    """Raise `TextError` if a part of the text has no entry."""
    try:
        yield
    except Exception as error:  # the library raises bare exceptions
        raise TextError(
            "the model's vocabulary has no entry for a part of the text, and none for unknown "
            f"words: remove or replace it ({str(error)[:200]})"
        ) from error
