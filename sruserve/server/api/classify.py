"""`POST /v1/classify`: label texts or features, or the next chunks of them, or pairs of texts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sruserve.server.api.call import Caller
from sruserve.server.api.inputs import Ids, Tokens, encode_input, split_inputs
from sruserve.server.api.requests import ClassifyRequest
from sruserve.server.api.sequences import SequenceRoute
from sruserve.server.api.served import Served
from sruserve.server.engine.jobs import Classified, Item, Kind
from sruserve.server.errors import InvalidRequest

_PAIR = "pair"


class ClassifyRoute(SequenceRoute[ClassifyRequest]):
    """A label with its score, and the scores of all labels."""

    path, task, schema = "/v1/classify", "classify", ClassifyRequest
    other_tasks = (_PAIR,)
    prefix = "cls"

    def choose(self, request: ClassifyRequest) -> Served:
        """A model of task `pair` for a pair, and no other."""
        if request.model is None:
            return self.catalogue.choose(None, self.task if request.pair is None else _PAIR)
        served = super().choose(request)
        compares = served.model.config.task == _PAIR
        if compares and request.pair is None:
            raise InvalidRequest(
                f"{served.name} compares two inputs: send the second one as `pair`", param=_PAIR
            )
        if request.pair is not None and not compares:
            raise InvalidRequest(
                f"{served.name} reads one input and compares nothing: leave out `pair`",
                param=_PAIR,
            )
        return served

    def kind(self, request: ClassifyRequest) -> Kind:
        return Kind.CLASSIFY if request.pair is None else Kind.COMPARE

    def numbers(self, served: Served, item: Item) -> int:
        del item
        return served.model.config.label_numbers

    async def items(
        self, caller: Caller, request: ClassifyRequest, served: Served, cost: int
    ) -> Sequence[Item]:
        if request.pair is None:
            return await super().items(caller, request, served, cost)
        if request.features is not None:
            raise InvalidRequest("'pair' goes with 'input'; leave out 'features'", param="features")
        if request.input is None:
            raise InvalidRequest("'input' is missing: send what 'pair' goes with", param="input")
        firsts = split_inputs(request.input, self.limits, "input")
        seconds = split_inputs(request.pair, self.limits, _PAIR)
        if len(firsts) != len(seconds):
            raise InvalidRequest(
                f"there are {len(firsts)} inputs and {len(seconds)} pairs to them; send one for "
                "each",
                param=_PAIR,
            )
        first = await self.read_ids(caller, served, firsts, "input")
        second = await self.read_ids(caller, served, seconds, _PAIR)
        pairs = zip(first, second, strict=True)
        return [Item(np.concatenate(pair), first=len(pair[0])) for pair in pairs]

    async def read_ids(
        self, caller: Caller, served: Served, inputs: Sequence[str | list[int]], field: str
    ) -> list[Ids]:
        """The ids of whole inputs."""

        def read(first: int, end: int, known: Tokens | None) -> list[Ids]:
            some = inputs[first:end]
            return [encode_input(served, each, None, field, known=known)[0] for each in some]

        return await self.read_inputs(caller, served, inputs, [None] * len(inputs), field, read)

    def result(self, served: Served, item: Item, result: Classified) -> dict[str, Any]:
        del item
        state = served.seal_state(result.state)
        if result.probabilities is None:
            return {"label": None, "score": None, "scores": None, "state": state}
        scores = result.probabilities.tolist()
        best = scores.index(max(scores))
        return {
            "label": served.labels[best],
            "score": scores[best],
            "scores": dict(zip(served.labels, scores, strict=True)),
            "state": state,
        }
