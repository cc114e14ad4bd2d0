"""What `/v1/classify`, `/v1/tag` and `/v1/encode` share: they read features, too."""

from collections.abc import Sequence
from typing import ClassVar, TypeVar

import numpy as np

from sruserve.server.api.call import Caller
from sruserve.server.api.inputs import LONG_CHARACTERS, Features, encode_features
from sruserve.server.api.requests import SequenceRequest
from sruserve.server.api.served import Served
from sruserve.server.api.texts import TextRoute
from sruserve.server.engine.jobs import Item
from sruserve.server.errors import EmptyInput, InputTooLong, InvalidRequest
from sruserve.server.offload import off_loop

Body = TypeVar("Body", bound=SequenceRequest)


class SequenceRoute(TextRoute[Body]):
    """One result for each text, or for the one sequence of features.

    features_item: what such a sequence becomes.
    """

    features_item: ClassVar[type[Item]] = Item

    async def items(
        self, caller: Caller, request: Body, served: Served, cost: int
    ) -> Sequence[Item]:
        features: Features | None = request.features
        if features is None:
            return await super().items(caller, request, served, cost)
        if request.input is not None:
            raise InvalidRequest("send either 'input' or 'features'", param="features")
        if len(features) > self.limits.input_bytes:
            raise InputTooLong(
                f"'features' has {len(features)} steps and may have {self.limits.input_bytes}; "
                "send them in chunks with `state`, or ask the operator to raise "
                "SRUSERVE_MAX_INPUT_BYTES",
                param="features",
            )
        (start,) = await self.starts(caller, request, served, 1, cost)
        if not len(features) and start is None:
            raise EmptyInput("'features' has no step; send at least one", param="features")
        many = features.size if isinstance(features, np.ndarray) else sum(map(len, features))
        long = many > LONG_CHARACTERS
        steps = await off_loop(long, encode_features, served, features, cost=cost, caller=caller)
        return [self.features_item(steps, start, more=request.more)]
