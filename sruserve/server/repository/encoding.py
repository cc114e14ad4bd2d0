"""Encode texts, ids and features as the arrays of a job."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self, cast

import numpy as np
from numpy.typing import NDArray

from sruserve.model.errors import TextError
from sruserve.model.folder import Model
from sruserve.model.text.codec import Codec
from sruserve.model.text.frames import ENDED, Frame
from sruserve.model.text.packed import PackedIds
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import (
    CannotStream,
    EmptyInput,
    InvalidRequest,
    NotFinite,
    UnfitInput,
)
from sruserve.server.repository.served_model import ServedModel

Ids = NDArray[np.int64]
_NONE: Ids = np.zeros(0, np.int64)
Features = list[list[float]] | NDArray[np.float32]  # of JSON, or of a tensor


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a text.

    ids: (tokens). places: (tokens, 2), of each id in the text; None: not requested.
    word: the unfinished word at the end of the text.
    """

    ids: Ids
    places: Ids | None
    word: str

    @classmethod
    def joined(cls, parts: Sequence[str], tokens_of_parts: Sequence["Tokens"]) -> Self:
        """The tokens of a text, joined from those of its parts."""
        begins = accumulate(map(len, parts), initial=0)
        places = [
            tokens.places + begin
            for tokens, begin in zip(tokens_of_parts, begins, strict=False)
            if tokens.places is not None
        ]
        ids = np.concatenate([tokens.ids for tokens in tokens_of_parts])
        return cls(ids, np.concatenate(places) if places else None, tokens_of_parts[-1].word)


def read_part(codec: Codec, text: str, word: str, more: bool, field: str, locate: bool) -> Tokens:
    """The tokens of a part of a text that continues `word`."""
    try:
        if locate:
            return Tokens(*codec.locate(text, word, more))
        ids, word = codec.encode(text, word, more)
    except TextError as error:
        raise _unfit(error, field) from error
    return Tokens(ids, None, word)


def encode_input(
    served: ServedModel,
    content: str | list[int],
    start: Snapshot | None,
    field: str,
    more: bool = False,
    tokens: Tokens | None = None,
    ends: bool = True,
) -> tuple[Ids, str]:
    """The ids of one input, and the unfinished word at its end.

    tokens: its tokens if it is encoded already.
    ends: a text without `more` ends here, and gets the ids that end a text.
    """
    model, unfinished = served.model, start.word if start is not None else ""
    codec = model.codec
    frame = None if codec is None else codec.frame
    if frame is not None:
        _check_goes_on(served, frame, unfinished, field)
    try:
        if tokens is not None:
            ids, word = tokens.ids, tokens.word
        elif isinstance(content, str):
            codec = codec_of(served, field) if codec is None else codec
            ids, word = codec.encode(content, unfinished, more)
        else:
            ids, word = check_ids(content, model, field), ""
            if unfinished and codec is not None:  # ids begin a new word
                ids = np.concatenate([codec.encode("", unfinished)[0], ids])
    except TextError as error:
        raise _unfit(error, field) from error
    if not len(ids):
        _check_not_empty(served, content, start, field, more)
    if frame is not None and isinstance(content, str):
        ids = ids[frame.kept(len(ids))]
        ids, _, word = _framed(frame, ids, None, content, word, start, ends and not more)
    return ids, word


def encode_texts(served: ServedModel, contents: Sequence[str | list[int]]) -> PackedIds | None:
    """The ids of whole texts, encoded together: one by one, they take twice as long.

    None: `encode_input` must encode each, to find what is wrong with one, or what surrounds it.
    """
    codec = served.model.codec
    is_text = isinstance(contents[0], str)  # then all are
    if codec is None or codec.frame is not None or not is_text:
        return None
    try:
        ids = codec.encode_texts(cast("Sequence[str]", contents))
    except TextError:
        return None
    return ids if all(ids.lengths) else None


def locate_input(
    served: ServedModel,
    text: str,
    start: Snapshot | None,
    field: str,
    more: bool,
    tokens: Tokens | None = None,
    ends: bool = True,
) -> tuple[Ids, Ids, str]:
    """`encode_input` of a text, with the place of each id in it, (ids, 2)."""
    frame = None if served.model.codec is None else served.model.codec.frame
    if frame is not None:
        _check_goes_on(served, frame, start.word if start is not None else "", field)
    if tokens is not None and tokens.places is not None:
        ids, places, word = tokens.ids, tokens.places, tokens.word
    else:
        unfinished = start.word if start is not None else ""
        try:
            ids, places, word = codec_of(served, field).locate(text, unfinished, more)
        except TextError as error:
            raise _unfit(error, field) from error
    if not len(ids):
        _check_not_empty(served, text, start, field, more)
    if frame is not None:
        kept = frame.kept(len(ids))
        return _framed(frame, ids[kept], places[kept], text, word, start, ends and not more)
    return ids, places, word


def _check_goes_on(served: ServedModel, frame: Frame, word: str, field: str) -> None:
    """Raise `CannotStream` if the text has its last ids already."""
    if word == ENDED and len(frame.suffix):
        raise CannotStream(
            f"the text of this state has ended, because {served.name}'s tokenizer adds ids at the "
            'end of a text: send its chunks with "more": true, apart from the last one',
            param=field,
        )


def _framed(
    frame: Frame,
    ids: Ids,
    places: Ids | None,
    text: str,
    word: str,
    start: Snapshot | None,
    ends: bool,
) -> tuple[Ids, Ids, str]:
    """Add the ids around a text, whose places are empty, if it begins or ends here."""
    begins = start is None or not (start.steps or start.pending >= 0)
    before, after = frame.prefix if begins else _NONE, frame.suffix if ends else _NONE
    if places is None:
        places = _NONE.reshape(0, 2)
    edges = np.zeros((len(before), 2), np.int64), np.full((len(after), 2), len(text), np.int64)
    word = ENDED if len(after) else word
    return np.concatenate([before, ids, after]), np.concatenate([edges[0], places, edges[1]]), word


def _unfit(error: TextError, field: str) -> UnfitInput:
    """The error of a field whose text the vocabulary refuses."""
    return UnfitInput(str(error), code=error.code, param=field)


def codec_of(served: ServedModel, field: str) -> Codec:
    """A model's vocabulary; raises `InvalidRequest` if it has none."""
    model = served.model
    if model.codec is None:
        raise InvalidRequest(
            f"{served.name} has no vocabulary: send "
            + ("`features`" if model.config.vocab_size is None else "token ids"),
            param=field,
        )
    return model.codec


def _check_not_empty(
    served: ServedModel, content: str | list[int], start: Snapshot | None, field: str, more: bool
) -> None:
    """Raise `EmptyInput` for a content without ids, unless it continues or its next chunk may."""
    if start is None and not (len(content) and more):
        continues = ", or a `state` to continue" * (served.not_streamable_because is None)
        raise EmptyInput(f"'{field}' has nothing to read; send some text{continues}", param=field)


def encode_features(served: ServedModel, rows: Features) -> NDArray[np.float32]:
    """Features, (steps, width), of one sequence."""
    config = served.model.config
    if config.vocab_size is not None:
        raise InvalidRequest(f"{served.name} reads text: send `input`", param="features")
    width = config.width
    widths = rows.shape[1:] if isinstance(rows, np.ndarray) else set(map(len, rows))
    if not set(widths) <= {width}:
        raise InvalidRequest(
            f"every step of 'features' must have {width} numbers for {served.name}",
            param="features",
        )
    with np.errstate(over="ignore"):
        features = np.array(rows, dtype=np.float32).reshape(-1, width)
    if not np.isfinite(features).all():
        raise NotFinite(
            "'features' has numbers beyond float32's range: send numbers within it",
            param="features",
        )
    return features


def check_ids(ids: list[int] | Ids, model: Model, field: str) -> Ids:
    """The ids of a field as an array; raises `InvalidRequest` for ids that the model lacks."""
    size = model.config.vocab_size
    if size is None:
        raise InvalidRequest(f"{model.name} takes no ids: send `features`", param=field)
    return check_range(ids, size, model.name, field)


def check_range(ids: list[int] | Ids, size: int, name: str, field: str) -> Ids:
    """The ids of a field as an array; raises `InvalidRequest` for one beyond a vocabulary."""
    # ids in JSON may exceed 64 bits, so they are compared as Python integers
    lowest, highest = (np.min, np.max) if isinstance(ids, np.ndarray) else (min, max)
    if len(ids) and not 0 <= lowest(ids) <= highest(ids) < size:
        wrong = next(i for i in ids if not 0 <= i < size)
        raise InvalidRequest(
            f"'{field}' has the token id {str(wrong)[:30]}; ids of {name} are from 0 to {size - 1}",
            param=field,
        )
    return np.array(ids, dtype=np.int64)
