"""`POST /v1/score`: how likely a language model finds texts, or the next chunks of them."""

from math import log
from typing import Any

from sruserve.server.api.requests import ScoreRequest
from sruserve.server.api.served import Served
from sruserve.server.api.texts import TextRoute
from sruserve.server.engine.jobs import Item, Kind, Scored

_LN_2 = log(2)


class ScoreRoute(TextRoute[ScoreRequest]):
    """The log-likelihood of what had something before it, and what that is in bits."""

    path, task, schema = "/v1/score", "generate", ScoreRequest
    prefix = "score"

    def kind(self, request: ScoreRequest) -> Kind:
        del request
        return Kind.SCORE

    def result(self, served: Served, item: Item, result: Scored) -> dict[str, Any]:
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
