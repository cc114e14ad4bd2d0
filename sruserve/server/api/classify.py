"""`POST /v1/classify`: label texts or features, or the next chunks of them."""

from typing import Any

from sruserve.server.api.inputs import LONG_CHARACTERS, encode_features
from sruserve.server.api.requests import ClassifyRequest
from sruserve.server.api.served import Served
from sruserve.server.api.texts import TextRoute
from sruserve.server.engine.jobs import Classified, Item, Kind
from sruserve.server.errors import EmptyInput, InputTooLong, InvalidRequest


class ClassifyRoute(TextRoute[ClassifyRequest]):
    """A label with its score, and the scores of all labels."""

    path, task, schema = "/v1/classify", "classify", ClassifyRequest
    kind, prefix = Kind.CLASSIFY, "cls"

    async def items(self, request: ClassifyRequest, served: Served, cost: int) -> list[Item]:
        features = request.features
        if features is None:
            return await super().items(request, served, cost)
        if request.input is not None:
            raise InvalidRequest("send either 'input' or 'features'", param="features")
        if len(features) > self.limits.input_bytes:
            raise InputTooLong(
                f"'features' has {len(features)} steps and may have {self.limits.input_bytes}; "
                "send them in chunks with `state`, or ask the operator to raise "
                "SRUSERVE_MAX_INPUT_BYTES",
                param="features",
            )
        (start,) = served.open_states(request.state, 1)
        if not features and start is None:
            raise EmptyInput("'features' has no step; send at least one", param="features")
        long = sum(map(len, features)) > LONG_CHARACTERS
        steps = await self.read(long, cost, encode_features, served, features)
        return [Item(steps, start, more=request.more)]

    def result(self, served: Served, result: Classified) -> dict[str, Any]:
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
