"""Encode: the outputs of a network without a head for each step."""

from typing import Any

from numpy.typing import NDArray

from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Encoded
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.per_input import Results, compute
from sruserve.server.tasks.requests import EncodeRequest
from sruserve.server.tasks.sequences import SequenceReader
from sruserve.server.tasks.task import Task

_INPUTS = SequenceReader()
_TURN = 4096  # numbers that are listed at once, which blocks the interpreter


class EncodeTask(Task[EncodeRequest, ServedModel]):
    """Compute outputs.

    Return the outputs of a network without a head for each step.
    """

    name, schema = "encode", EncodeRequest
    route, prefix, streams = "encode", "enc", True

    async def run(
        self, caller: Caller, request: EncodeRequest, served: ServedModel, cost: int
    ) -> Results:
        """Compute the outputs of a request's inputs. cost: bytes of the request, for the queue."""
        state_output = served.state_output(request)
        items = await _INPUTS.read(caller, request, served, self.limits, cost)
        steps = sum(len(item.inputs) for item in items)
        return await compute(
            caller,
            request,
            served,
            self.limits,
            cost,
            JobKind.ENCODE,
            items,
            state_output=state_output,
            numbers=steps * served.model.config.rnn.output_size,
        )

    def describe(self, served: ServedModel, item: SequenceInput, result: Encoded) -> dict[str, Any]:
        del item
        return {"outputs": listed(result.outputs), "state": served.seal_state(result.state)}


def listed(array: NDArray[Any]) -> list[Any]:
    """The same as `array.tolist()`, in parts, so that other threads can run meanwhile."""
    rows = max(1, _TURN * len(array) // max(1, array.size))
    return [row for at in range(0, len(array), rows) for row in array[at : at + rows].tolist()]
