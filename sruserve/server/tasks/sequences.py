"""The base of tasks with a result for each input that also read features."""

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from sruserve.server.engine.job import SequenceInput, Snapshot
from sruserve.server.errors import EmptyInput, InputTooLong, InvalidRequest
from sruserve.server.offload import LONG_CHARACTERS, offload
from sruserve.server.repository.encoding import Features, encode_features
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.inputs import INPUT_CHARACTERS, check_inputs
from sruserve.server.tasks.per_text import PerTextTask
from sruserve.server.tasks.requests import SequenceRequest

Body = TypeVar("Body", bound=SequenceRequest)
# one sequence, or several
Batch = Features | list[list[list[float]]] | list[NDArray[np.float32]]


class SequenceTask(PerTextTask[Body]):
    """One result for each text, or for each sequence of features."""

    def items(
        self, caller: Caller, request: Body, served: ServedModel, cost: int
    ) -> Coroutine[Any, Any, Sequence[SequenceInput]]:
        if request.features is None:
            return super().items(caller, request, served, cost)
        return self._feature_items(caller, request, request.features, served, cost)

    async def _feature_items(
        self, caller: Caller, request: Body, features: Batch, served: ServedModel, cost: int
    ) -> Sequence[SequenceInput]:
        if request.input is not None:
            raise InvalidRequest(
                "'input' and 'features' are both set: leave out one of them", param="features"
            )
        sequences = sequences_of(features)
        check_inputs(len(sequences), self.limits, "features")
        starts = await self.starts(caller, request, served, len(sequences), cost)
        for sequence, start in zip(sequences, starts, strict=True):
            self._check_steps(len(sequence), start, served)
        numbers = sum(map(_numbers, sequences))

        def encode() -> list[SequenceInput]:
            return [
                self.features_item(request, served, encode_features(served, sequence), start)
                for sequence, start in zip(sequences, starts, strict=True)
            ]

        size = numbers + INPUT_CHARACTERS * len(sequences)
        return await offload(size > LONG_CHARACTERS, encode, cost=cost, caller=caller)

    def features_item(
        self,
        request: Body,
        served: ServedModel,
        features: NDArray[np.float32],
        start: Snapshot | None,
    ) -> SequenceInput:
        """The item of a sequence of features."""
        del served
        return SequenceInput(features, start, more=request.more)

    def _check_steps(self, steps: int, start: Snapshot | None, served: ServedModel) -> None:
        """Raise if a sequence is too long, or empty."""
        if steps > self.limits.input_bytes:
            raise InputTooLong(
                f"'features' has {steps} steps and may have {self.limits.input_bytes}; "
                f"{served.chunks_or_parts}, or ask the operator to raise SRUSERVE_MAX_INPUT_BYTES",
                param="features",
            )
        if not steps and start is None:
            raise EmptyInput("'features' has no steps; send at least one", param="features")


def sequences_of(features: Batch) -> Sequence[Features]:
    """The sequences of a field: one, (steps, features), or a list of them."""
    if isinstance(features, np.ndarray):
        return [features]
    if features and isinstance(features[0], np.ndarray):
        return features
    several = any(rows and isinstance(rows[0], list) for rows in features)
    return cast("list[list[list[float]]]", features) if several else [cast(Features, features)]


def _numbers(sequence: Features) -> int:
    return sequence.size if isinstance(sequence, np.ndarray) else sum(map(len, sequence))
