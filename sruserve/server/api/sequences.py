"""What `/v1/classify`, `/v1/tag` and `/v1/encode` share: they read features, too."""

from typing import ClassVar, TypeVar

from sruserve.server.api.inputs import LONG_CHARACTERS, encode_features
from sruserve.server.api.requests import SequenceRequest
from sruserve.server.api.served import Served
from sruserve.server.api.texts import TextRoute
from sruserve.server.engine.jobs import Item
from sruserve.server.errors import EmptyInput, InputTooLong, InvalidRequest

Body = TypeVar("Body", bound=SequenceRequest)


class SequenceRoute(TextRoute[Body]):
    """One result for each text, or for the one sequence of features.

    features_item: what such a sequence becomes.
    """

    features_item: ClassVar[type[Item]] = Item

    async def items(self, request: Body, served: Served, cost: int) -> list[Item]:
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
        (start,) = served.starts(request, 1)
        if not features and start is None:
            raise EmptyInput("'features' has no step; send at least one", param="features")
        long = sum(map(len, features)) > LONG_CHARACTERS
        steps = await self.read(long, cost, encode_features, served, features)
        return [self.features_item(steps, start, more=request.more)]
