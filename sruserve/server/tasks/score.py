"""Score: the likelihood of texts, or of their next chunks, under a language model."""

from math import log
from typing import Any

from sruserve.server.engine.job import JobKind, Scored, SequenceInput, Snapshot
from sruserve.server.repository.encoding import Tokens, encode_input
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.inputs import sampler_key
from sruserve.server.tasks.per_text import PerTextTask
from sruserve.server.tasks.requests import ScoreRequest

_LN_2 = log(2)


class ScoreTask(PerTextTask[ScoreRequest]):
    """The log-likelihood of all tokens with a predecessor, also in bits."""

    name, schema = "generate", ScoreRequest
    needs_only_ids = False

    def kind(self, request: ScoreRequest, served: ServedModel) -> JobKind:
        del request, served
        return JobKind.SCORE

    def text_item(
        self,
        request: ScoreRequest,
        served: ServedModel,
        content: str | list[int],
        start: Snapshot | None,
        tokens: Tokens | None,
    ) -> SequenceInput:
        ids, word = encode_input(served, content, start, "input", request.more, tokens)
        return SequenceInput(ids, start, word, request.more, *sampler_key(start))

    def describe(self, served: ServedModel, item: SequenceInput, result: Scored) -> dict[str, Any]:
        del item
        bits = -result.log_likelihood / _LN_2
        return {
            "log_likelihood": result.log_likelihood,
            "bits_per_character": bits / result.characters if result.characters else None,
            "bits_per_token": bits / result.tokens if result.tokens else None,
            "characters": result.characters,
            "tokens": result.tokens,
            "state": served.seal_state(result.state),
        }
