"""One completion as it grows, in OpenAI's shape: its text, its log-probabilities, its end."""

from collections.abc import Sequence
from typing import Any

from sruserve.server.api.served import Served
from sruserve.server.engine.jobs import Generated, Logprobs


class Choice:
    """Turns the stretches of one completion into `choices[index]`, one by one or all at once."""

    def __init__(self, index: int, served: Served, with_logprobs: bool) -> None:
        self.tokens = 0
        self._index = index
        self._served = served
        self._with_logprobs = with_logprobs
        self._with_ids = served.model.codec is None
        self._offset = 0  # characters before the next token
        self._pieces: list[Generated] = []

    def keep(self, piece: Generated) -> None:
        """Remember a stretch for `whole`."""
        self._pieces.append(piece)

    def whole(self) -> dict[str, Any]:
        """The completion of all stretches kept so far."""
        last = self._pieces[-1]
        return self.part(
            Generated(
                text="".join(piece.text for piece in self._pieces),
                tokens=[token for piece in self._pieces for token in piece.tokens],
                logprobs=[each for piece in self._pieces for each in piece.logprobs],
                finish_reason=last.finish_reason,
                stop_reason=last.stop_reason,
                state=last.state,
            )
        )

    def part(self, piece: Generated) -> dict[str, Any]:
        """The choice of a chunk that holds just this stretch."""
        self.tokens += len(piece.tokens)
        choice: dict[str, Any] = {
            "index": self._index,
            "text": piece.text,
            "logprobs": self._logprobs(piece.logprobs) if self._with_logprobs else None,
            "finish_reason": piece.finish_reason,
        }
        if self._with_ids:
            choice["token_ids"] = list(piece.tokens)
        if piece.finish_reason is not None:
            choice["stop_reason"] = piece.stop_reason
            choice["state"] = self._served.seal_state(piece.state)
        return choice

    def _logprobs(self, found: Sequence[Logprobs]) -> dict[str, Any]:
        offsets = []
        for each in found:
            offsets.append(self._offset)
            self._offset += len(each.token)
        return {
            "tokens": [each.token for each in found],
            "token_logprobs": [each.logprob for each in found],
            "top_logprobs": [each.top for each in found],
            "text_offset": offsets,
        }
