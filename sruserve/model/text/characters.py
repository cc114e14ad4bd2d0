"""A vocabulary of single characters: each character of a text is one id, white space too."""

from collections.abc import Callable, Sequence

import numpy as np

from sruserve.model.errors import TextError
from sruserve.model.text.decoders import state_of, steps_of
from sruserve.model.text.frames import Ids
from sruserve.model.text.packed import PackedIds
from sruserve.model.text.tokenizer_file import TokenizerFile

EVERY_CHARACTER = r"[\s\S]"


def splits_characters(file: TokenizerFile) -> bool:
    """Whether a tokenizer looks each character up by itself, lower-cased or as it is."""
    splits = [
        step["type"] == "Split" and step["behavior"] == "Isolated" and step["pattern"]
        for step in steps_of(file.tokenizer.pre_tokenizer)
    ]
    return (
        type(file.tokenizer.model).__name__ == "WordLevel"
        and splits == [{"Regex": EVERY_CHARACTER}]
        and state_of(file.tokenizer.normalizer) in ({}, {"type": "Lowercase"})
        and not file.tokenizer.get_added_tokens_decoder()
        and any(len(entry) == 1 for entry in file.entries)
    )


class Characters:
    """A tokenizer of characters; see `Codec`. A character is never unfinished."""

    growth = 0.0

    def __init__(self, file: TokenizerFile) -> None:
        self.size, self.work, self.frame = len(file.entries), file.work, file.frame
        self.pieces, self.ends = file.written.pieces, file.written.ends
        self.characters = file.characters
        self.whole_because = None if file.frame is None else file.frame.whole_because
        self.uncut_because: str | None = None
        normalizer = file.tokenizer.normalizer
        self._lower: Callable[[str], str] | None = normalizer and normalizer.normalize_str
        known = {ord(entry): i for i, entry in enumerate(file.entries) if len(entry) == 1}
        self._points = np.array(sorted(known), np.uint32)
        self._ids: Ids = np.array([known[point] for point in sorted(known)], np.int64)
        unknown = file.tokenizer.token_to_id(file.tokenizer.model.unk_token)
        self._unknown = -1 if unknown is None else unknown

    def encode(self, text: str, word: str = "", more: bool = False) -> tuple[Ids, str]:
        del more
        text = word + text
        if self._lower is not None:
            text = self._lower(text)
        points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        at = np.searchsorted(self._points, points).clip(max=len(self._points) - 1)
        known = self._points[at] == points
        if self._unknown < 0 and not known.all():
            place = int(known.argmin())
            raise TextError(
                f"the model's vocabulary has no {text[place]!r} (at character {place} of the "
                "text) and no entry for unknown characters; remove or replace it"
            )
        ids: Ids = np.where(known, self._ids[at], self._unknown)
        return ids, ""

    def encode_texts(self, texts: Sequence[str]) -> PackedIds:
        return PackedIds.joined([self.encode(text)[0] for text in texts])

    def locate(self, text: str, word: str = "", more: bool = False) -> tuple[Ids, Ids, str]:
        ids, rest = self.encode(text, word, more)
        whole = word + text
        places: Ids = np.arange(len(whole), dtype=np.int64)
        if len(ids) != len(whole) and self._lower is not None:  # some have two in lower case
            places = places.repeat([len(self._lower(character)) for character in whole])
        places -= len(word)
        return ids, np.stack([places, places + 1], 1), rest

    def parts(self, text: str, max_characters: int) -> list[str]:
        starts = range(0, len(text), max_characters)
        return [text[start : start + max_characters] for start in starts]
