"""Encode: the outputs of a network without a head for each step."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from sruserve.server.engine.job import Encoded, JobKind, SequenceInput
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.requests import EncodeRequest
from sruserve.server.tasks.sequences import SequenceTask

_TURN = 4096  # numbers that are listed at once, which blocks the interpreter


class EncodeTask(SequenceTask[EncodeRequest]):
    """The outputs of the last layer, steps x features."""

    name, schema = "encode", EncodeRequest

    def kind(self, request: EncodeRequest, served: ServedModel) -> JobKind:
        del request, served
        return JobKind.ENCODE

    def numbers(
        self, request: EncodeRequest, served: ServedModel, items: Sequence[SequenceInput]
    ) -> int:
        del request
        return served.model.config.rnn.output_size * sum(len(item.inputs) for item in items)

    def describe(self, served: ServedModel, item: SequenceInput, result: Encoded) -> dict[str, Any]:
        del item
        return {"outputs": listed(result.outputs), "state": served.seal_state(result.state)}


def listed(array: NDArray[Any]) -> list[Any]:
    """The same as `array.tolist()`, in parts, so that other threads can run meanwhile."""
    rows = max(1, _TURN * len(array) // max(1, array.size))
    return [row for at in range(0, len(array), rows) for row in array[at : at + rows].tolist()]
