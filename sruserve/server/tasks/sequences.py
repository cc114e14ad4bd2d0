"""The base of tasks with a result for each input that also read features."""

from collections.abc import Awaitable, Sequence
from typing import ClassVar, TypeVar

import numpy as np

from sruserve.server.engine.job import SequenceInput
from sruserve.server.errors import EmptyInput, InputTooLong, InvalidRequest
from sruserve.server.offload import offload
from sruserve.server.repository.encoding import Features, encode_features
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.inputs import LONG_CHARACTERS
from sruserve.server.tasks.per_input import PerInputTask
from sruserve.server.tasks.requests import SequenceRequest

Body = TypeVar("Body", bound=SequenceRequest)


class SequenceTask(PerInputTask[Body]):
    """One result for each text, or for the one sequence of features.

    features_item: the type of a sequence's item.
    """

    features_item: ClassVar[type[SequenceInput]] = SequenceInput

    def items(
        self, caller: Caller, request: Body, served: ServedModel, cost: int
    ) -> Awaitable[Sequence[SequenceInput]]:
        if request.features is None:
            return super().items(caller, request, served, cost)
        return self._feature_items(caller, request, request.features, served, cost)

    async def _feature_items(
        self, caller: Caller, request: Body, features: Features, served: ServedModel, cost: int
    ) -> Sequence[SequenceInput]:
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
            raise EmptyInput("'features' has no steps; send at least one", param="features")
        numbers = features.size if isinstance(features, np.ndarray) else sum(map(len, features))
        long = numbers > LONG_CHARACTERS
        steps = await offload(long, encode_features, served, features, cost=cost, caller=caller)
        return [self.features_item(steps, start, more=request.more)]
