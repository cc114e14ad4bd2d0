"""Tokenize: a text as the ids that a model reads, and ids as the text that they stand for."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from sruserve.model.names import Task as ModelTask
from sruserve.model.text.codec import pieces_after, token_text
from sruserve.server.offload import LONG_CHARACTERS, offload
from sruserve.server.repository.encoding import Ids, Tokens, check_ids, codec_of, read_part
from sruserve.server.repository.served_model import ServedModel, with_states
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.encode import listed
from sruserve.server.tasks.inputs import split_inputs
from sruserve.server.tasks.limits import bytes_numbers
from sruserve.server.tasks.reading import read_inputs
from sruserve.server.tasks.requests import DetokenizeRequest, TokenizeRequest
from sruserve.server.tasks.task import Task

_TASKS: tuple[str, ...] = get_args(ModelTask)
_STRING_NUMBERS = 2  # of a token's text in a reply
_ADVICE = "send a part of it at a time"


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The ids of a text.

    limit: the most ids that the model reads of a text; None: it reads all of any text.
    strings: the text of each id; None: not requested.
    large: encoding a reply would block the event loop.
    """

    ids: list[int]
    limit: int | None
    strings: list[str] | None
    large: bool


class TokenizeTask(Task[TokenizeRequest, ServedModel]):
    """The ids that a model with a vocabulary reads for a text."""

    name, other_names, schema = _TASKS[0], _TASKS[1:], TokenizeRequest
    is_default = False

    def choose(self, request: Any) -> ServedModel:
        return with_states(self.catalogue.choose(request.model, *_TASKS))

    @asynccontextmanager
    async def run(
        self, caller: Caller, request: TokenizeRequest, served: ServedModel
    ) -> AsyncIterator[Tokenized]:
        """Tokenize the text of a request; the ids count as unsent until the block ends."""
        inputs = split_inputs(request.prompt, self.limits, "prompt")
        codec = codec_of(served, "prompt")

        def read(first: int, end: int, tokens: Tokens | None) -> list[Ids]:
            del first, end  # of one text
            if tokens is None:
                tokens = read_part(codec, request.prompt, "", False, "prompt", False)
            return [_framed(request, served, tokens.ids)]

        (ids,) = await read_inputs(caller, served, self.limits, inputs, [None], "prompt", read)
        numbers = len(ids) * (1 + _STRING_NUMBERS * request.return_token_strs)
        with caller.unsent(self.limits.reserve_reply(numbers, _ADVICE)):
            caller.submitted()
            large = numbers > LONG_CHARACTERS
            yield await offload(
                large, _tokenized, request, served, ids, large, cost=numbers, caller=caller
            )


class DetokenizeTask(Task[DetokenizeRequest, ServedModel]):
    """The text that ids of a model's vocabulary stand for."""

    name, other_names, schema = _TASKS[0], _TASKS[1:], DetokenizeRequest
    is_default = False

    def choose(self, request: Any) -> ServedModel:
        return with_states(self.catalogue.choose(request.model, *_TASKS))

    @asynccontextmanager
    async def run(
        self, caller: Caller, request: DetokenizeRequest, served: ServedModel
    ) -> AsyncIterator[str]:
        """Join the pieces of a request's ids; the text counts as unsent until the block ends."""
        (tokens,) = split_inputs([request.tokens], self.limits, "tokens")
        assert isinstance(tokens, list)
        codec = codec_of(served, "tokens")

        def measure() -> int:
            check_ids(tokens, served.model, "tokens")
            spaces = 0 if codec.ends is None else len(tokens)
            return spaces + sum(len(codec.pieces[token]) for token in tokens)

        def join() -> str:
            pieces = pieces_after(codec, -1)
            return b"".join([pieces[token] for token in tokens]).decode(errors="replace")

        cost = len(tokens)
        size = await offload(cost > LONG_CHARACTERS, measure, cost=cost, caller=caller)
        with caller.unsent(self.limits.reserve_reply(bytes_numbers(size), _ADVICE)):
            caller.submitted()
            yield await offload(size > LONG_CHARACTERS, join, cost=size, caller=caller)


def _framed(request: TokenizeRequest, served: ServedModel, ids: Ids) -> Ids:
    """The ids that the model reads: truncated, and with those around a text if requested."""
    codec = served.model.codec
    frame = None if codec is None else codec.frame
    if frame is None:
        return ids
    ids = ids[frame.kept(len(ids))]
    if not request.add_special_tokens:
        return ids
    ends = served.model.config.task != "generate"  # a prompt is continued
    return np.concatenate([frame.prefix, ids, frame.suffix if ends else ids[:0]])


def _tokenized(request: TokenizeRequest, served: ServedModel, ids: Ids, large: bool) -> Tokenized:
    codec = served.model.codec
    frame = None if codec is None else codec.frame
    limit = None
    if frame is not None and frame.limit is not None:
        limit = frame.limit + len(frame.prefix) + len(frame.suffix)
    tokens: Sequence[int] = listed(ids)
    strings = [token_text(codec, token) for token in tokens] if request.return_token_strs else None
    return Tokenized(list(tokens), limit, strings, large)
