"""Read the texts or features of a request, or their next chunks, as the items of a job."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import EmptyInput, InputTooLong, InvalidRequest
from sruserve.server.offload import LONG_CHARACTERS, offload
from sruserve.server.repository.encoding import Features, encode_features
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.inputs import INPUT_CHARACTERS, check_inputs
from sruserve.server.tasks.limits import InputLimits
from sruserve.server.tasks.requests import SequenceRequest
from sruserve.server.tasks.texts import TextReader

_TEXTS = TextReader()
# one sequence, or several
Batch = Features | list[list[list[float]]] | list[NDArray[np.float32]]
FeaturesItem = Callable[[Any, ServedModel, NDArray[np.float32], Snapshot | None], SequenceInput]


def features_item(
    request: SequenceRequest,
    served: ServedModel,
    features: NDArray[np.float32],
    start: Snapshot | None,
) -> SequenceInput:
    """A sequence of features, (steps, features)."""
    del served
    return SequenceInput(features, start, more=request.more)


@dataclass(frozen=True, slots=True)
class SequenceReader:
    """Reads one item for each text, or for each sequence of features.

    texts: reads texts. features_item: makes an item of a sequence and the state before it.
    """

    texts: TextReader = _TEXTS
    features_item: FeaturesItem = features_item

    def read(
        self,
        caller: Caller,
        request: SequenceRequest,
        served: ServedModel,
        limits: InputLimits,
        cost: int,
    ) -> Coroutine[Any, Any, Sequence[SequenceInput]]:
        """The inputs of a request with their states. cost: bytes of the request, for turns."""
        if request.features is None:
            return self.texts.read(caller, request, served, limits, cost)
        return self._read_features(caller, request, request.features, served, limits, cost)

    async def _read_features(
        self,
        caller: Caller,
        request: SequenceRequest,
        features: Batch,
        served: ServedModel,
        limits: InputLimits,
        cost: int,
    ) -> Sequence[SequenceInput]:
        if request.input is not None:
            raise InvalidRequest(
                "'input' and 'features' are both set: leave out one of them", param="features"
            )
        sequences = sequences_of(features)
        check_inputs(len(sequences), limits, "features")
        starts = await self.texts.open_states(caller, request, served, len(sequences), cost)
        for sequence, start in zip(sequences, starts, strict=True):
            _check_steps(len(sequence), start, served, limits)
        numbers = sum(map(_numbers, sequences))

        def encode() -> list[SequenceInput]:
            return [
                self.features_item(request, served, encode_features(served, sequence), start)
                for sequence, start in zip(sequences, starts, strict=True)
            ]

        size = numbers + INPUT_CHARACTERS * len(sequences)
        return await offload(size > LONG_CHARACTERS, encode, cost=cost, caller=caller)


def sequences_of(features: Batch) -> Sequence[Features]:
    """The sequences of a field: one, (steps, features), or a list of them."""
    if isinstance(features, np.ndarray):
        return [features]
    if features and isinstance(features[0], np.ndarray):
        return features
    several = any(rows and isinstance(rows[0], list) for rows in features)
    return cast("list[list[list[float]]]", features) if several else [cast(Features, features)]


def _check_steps(
    steps: int, start: Snapshot | None, served: ServedModel, limits: InputLimits
) -> None:
    """Raise if a sequence is too long, or empty."""
    if steps > limits.input_bytes:
        raise InputTooLong(
            f"'features' has {steps} steps and may have {limits.input_bytes}; "
            f"{served.chunks_or_parts}, or ask the operator to raise SRUSERVE_MAX_INPUT_BYTES",
            param="features",
        )
    if not steps and start is None:
        raise EmptyInput("'features' has no steps; send at least one", param="features")


def _numbers(sequence: Features) -> int:
    return sequence.size if isinstance(sequence, np.ndarray) else sum(map(len, sequence))
