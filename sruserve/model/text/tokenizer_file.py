"""A tokenizer.json that is loaded and checked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from sruserve.model.errors import FolderError, brief, faults
from sruserve.model.json_names import load_json
from sruserve.model.text.decoders import Written, written
from sruserve.model.text.frames import Frame, Ids, frame_of
from sruserve.model.text.normalizers import growth, is_slow, work
from sruserve.model.text.pattern_stack import check_patterns

_LONGEST_ENTRY = 1024  # bytes; limited because replies repeat entries
_LIBRARY_WORDS = 1024


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer without padding, truncation and dropout, which its frame has.

    source: its name in error messages. entries: by id.
    growth: the largest factor by which it lengthens a text before it looks it up, in UTF-8 bytes.
    work: estimated look-ups for a character of a text.
    is_slow: its normalizers may not run where they hold the interpreter.
    """

    source: str
    tokenizer: Tokenizer
    entries: tuple[str, ...]
    growth: float
    work: float
    is_slow: bool
    written: Written
    frame: Frame | None

    @property
    def characters(self) -> Ids:
        """The characters that begin in each piece. Entries that only the frame adds have none."""
        counts = [sum(byte & 0xC0 != 0x80 for byte in piece) for piece in self.written.pieces]
        characters = np.array(counts, np.int64)
        if self.frame is not None:
            characters[self.frame.prefix] = characters[self.frame.suffix] = 0
        return characters


def read_tokenizer(content: bytes, source: object) -> TokenizerFile:
    """Load a tokenizer.json; raises `FolderError` that names the part which cannot be used."""
    try:
        described = load_json(content)
        check_patterns(described)
        factor = growth(described)  # before the library can run the normalizers
        effort, slow = work(described), is_slow(described)
        del described
        tokenizer = Tokenizer.from_buffer(content)
        _check_added(tokenizer)
        frame = frame_of(tokenizer)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        if getattr(tokenizer.model, "dropout", None) is not None:
            tokenizer.model.dropout = None  # at random, for training
        _bound_cache(tokenizer.model)
        size: int = tokenizer.get_vocab_size()
        entries = [tokenizer.id_to_token(i) for i in range(size)]
        _check_entries(entries)
        known = tuple(entry for entry in entries if entry is not None)
        texts = written(tokenizer, known)
    except faults() as error:  # the library raises bare exceptions, and panics
        raise FolderError(
            f"{source} is not a usable tokenizer.json: {brief(error)}; save it by the tokenizers "
            "library again"
        ) from error
    if len(known) < size:
        raise FolderError(f"{source} must number its {size} entries from 0 without gaps")
    if frame is not None and max([*frame.prefix, *frame.suffix, 0]) >= size:
        raise FolderError(f"{source}: its post-processor adds ids that are no entries")
    return TokenizerFile(str(source), tokenizer, known, factor, effort, slow, texts, frame)


def _check_added(tokenizer: Tokenizer) -> None:
    """Raise `ValueError` for an added token that the normalizers delete, or make that of another.

    The library finds the first kind between any two characters, and never ends. Which of the second
    kind it finds differs from load to load.
    """
    normalizer = tokenizer.normalizer
    contents: dict[str, str] = {}
    for token in tokenizer.get_added_tokens_decoder().values():
        normalized = token.normalized and normalizer is not None
        content = normalizer.normalize_str(token.content) if normalized else token.content
        if not content:
            raise ValueError(
                f"its normalizers delete the added token {token.content[:40]!r}; remove the token, "
                "or set `normalized` to false"
            )
        if (other := contents.setdefault(content, token.content)) != token.content:
            raise ValueError(
                f"its normalizers make the added tokens {other[:40]!r} and {token.content[:40]!r} "
                "the same; remove one of them, or set its `normalized` to false"
            )


def _check_entries(entries: Sequence[str | None]) -> None:
    """Raise `ValueError` if an entry is too long."""
    for number, entry in enumerate(entries):
        if entry is not None and (size := len(entry.encode())) > _LONGEST_ENTRY:
            raise ValueError(
                f"entry {number} ({entry[:40]!r}…) has {size:,} bytes; the limit is "
                f"{_LONGEST_ENTRY:,}"
            )


def _bound_cache(model: Any) -> None:
    """Lower the size of the library's word cache from 10,000 entries, of up to 14 kB each."""
    if hasattr(model, "_resize_cache"):  # models that only look words up have no cache
        model._resize_cache(_LIBRARY_WORDS)
