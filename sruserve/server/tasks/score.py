"""Score: the likelihood of texts, or of their next chunks, under a language model."""

from math import log
from typing import Any

from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Scored
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.repository.encoding import Tokens, encode_input
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.inputs import sampler_key
from sruserve.server.tasks.per_input import Results, compute
from sruserve.server.tasks.requests import ScoreRequest
from sruserve.server.tasks.task import Task
from sruserve.server.tasks.texts import Text, TextReader

_LN_2 = log(2)


class ScoreTask(Task[ScoreRequest, ServedModel]):
    """Score texts.

    Return the log-likelihood and bits per character of texts under a language model.
    """

    name, schema = "generate", ScoreRequest
    route, prefix, streams = "score", "score", True
    chosen_by = "input"

    async def run(
        self, caller: Caller, request: ScoreRequest, served: ServedModel, cost: int
    ) -> Results:
        """Score the texts of a request. cost: bytes of the request, for the queue."""
        state_output = served.state_output(request)
        items = await _TEXTS.read(caller, request, served, self.limits, cost)
        kind, limits = JobKind.SCORE, self.limits
        return await compute(
            caller, request, served, limits, cost, kind, items, state_output=state_output
        )

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


def _text_item(
    request: ScoreRequest,
    served: ServedModel,
    content: Text,
    start: Snapshot | None,
    tokens: Tokens | None,
) -> SequenceInput:
    """A text with the seed and the choice of its stream, which a completion may continue."""
    ids, word = encode_input(served, content, start, "input", request.more, tokens)
    return SequenceInput(ids, start, word, request.more, *sampler_key(start))


_TEXTS = TextReader(_text_item, needs_only_ids=False)
