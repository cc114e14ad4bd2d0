"""Build one choice of a completion in OpenAI's shape, chunk by chunk or as a whole."""

import codecs
from collections.abc import Sequence
from typing import Any

from sruserve.model.text.codec import SpacedPieces, token_text
from sruserve.server.engine.results import Generated
from sruserve.server.offload import LONG_TOKENS, MAX_INLINE_STATES
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.prompts import Prompt, count_replaced

_FREED = 1024  # objects at a time: freeing many in one go would block all other threads


def is_large(pieces: Sequence[Generated]) -> bool:
    """Whether sealing and encoding these would block the event loop."""
    return (
        len(pieces) > MAX_INLINE_STATES or sum(len(piece.tokens) for piece in pieces) > LONG_TOKENS
    )


def free(values: list[Any]) -> None:
    """Empty a list, a few values at a time."""
    while values:
        del values[-_FREED:]


def free_choices(choices: list[dict[str, Any]]) -> None:
    """Empty choices that are encoded."""
    for choice in choices:
        for values in (choice["logprobs"] or {}).values():
            free(values)
    free(choices)


class ChoiceBuilder:
    """Turns the chunks of one completion into `choices[index]`, one at a time or all at once."""

    def __init__(
        self, index: int, served: ServedModel, request: CompletionRequest, prompt: Prompt
    ) -> None:
        self.tokens = 0
        self.pieces: list[Generated] = []
        self._index = index
        self._served = served
        self._codec = served.model.codec
        self._with_logprobs = request.logprobs is not None
        self._with_ids = request.return_token_ids or self._codec is None
        self._echo = prompt if request.echo else None  # until it is in a chunk
        self._offset = 0  # characters before the next token
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pieces: Sequence[bytes] = () if self._codec is None else self._codec.pieces
        if self._codec is not None and self._codec.ends is not None:
            previous = -1 if prompt.start is None else prompt.start.pending
            last = int(prompt.ids[-1]) if len(prompt.ids) else previous
            self._pieces = SpacedPieces(self._codec, last)
        if prompt.start is not None:
            self._decoder.decode(prompt.start.utf8)
            self._offset = len(prompt.start.held_back)
            if len(prompt.ids):  # a prompt cannot continue held-back text
                self._offset += len(self._decoder.decode(b"", True))

    def add(self, piece: Generated) -> None:
        """Add a chunk, for `whole`."""
        self.pieces.append(piece)

    def whole(self) -> dict[str, Any]:
        """The choice of all chunks, which are freed."""
        pieces, self.pieces = self.pieces, []
        last = pieces[-1]
        logprobs = [of_token for piece in pieces for of_token in piece.logprobs]
        whole = Generated(
            text="".join(piece.text for piece in pieces),
            tokens=[token for piece in pieces for token in piece.tokens],
            logprobs=logprobs,
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            state=last.state,
        )
        choice = self.part(whole)
        free(pieces)
        del whole
        free(logprobs)
        return choice

    def part(self, piece: Generated) -> dict[str, Any]:
        """The choice of a single chunk."""
        self.tokens += len(piece.tokens)
        text, ids, echoed = piece.text, list(piece.tokens), None
        if self._echo is not None:  # after text that an earlier request held back
            prompt, self._echo = self._echo, None
            at = self._offset
            text = text[:at] + prompt.text + text[at:]
            ids = prompt.ids.tolist() + ids
            echoed = self._echoed(prompt, at)
            self._offset += len(prompt.text)
        choice: dict[str, Any] = {
            "index": self._index,
            "text": text,
            "logprobs": self._logprobs(piece, echoed) if self._with_logprobs else None,
            "finish_reason": piece.finish_reason,
        }
        if self._with_ids:
            choice["token_ids"] = ids
        if piece.finish_reason is not None:
            choice["stop_reason"] = piece.stop_reason
        if piece.finish_reason is not None or piece.state is not None:
            choice["state"] = self._served.seal_state(piece.state)
        return choice

    def _echoed(self, prompt: Prompt, at: int) -> dict[str, list[Any]]:
        """The log-probabilities of a prompt's tokens. at: the offset of the prompt."""
        scored = prompt.logprobs
        unscored = prompt.ids[
            : len(prompt.ids) - len(scored)
        ].tolist()  # tokens without a predecessor
        return {
            "tokens": [token_text(self._codec, token) for token in unscored]
            + [entry.token for entry in scored],
            "token_logprobs": [None for _ in unscored] + [entry.logprob for entry in scored],
            "top_logprobs": [None for _ in unscored] + [entry.top for entry in scored],
            "text_offset": [at + offset for offset in prompt.offsets],
        }

    def _logprobs(
        self, piece: Generated, echoed: dict[str, list[Any]] | None
    ) -> dict[str, list[Any]]:
        entries = piece.logprobs
        offsets = []
        for token in piece.tokens:
            # a token that is a part of a character adds no text
            added = b"" if self._codec is None else self._pieces[token]
            self._offset += count_replaced(self._decoder, added)
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(added))
        logprobs: dict[str, list[Any]] = {
            "tokens": [entry.token for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [entry.top for entry in entries],
            "text_offset": offsets,
        }
        return {name: echoed[name] + logprobs[name] for name in logprobs} if echoed else logprobs
