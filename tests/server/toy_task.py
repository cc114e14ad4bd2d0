"""A whole task in one file, which `docs/architecture.md` shows: the norm of an input."""

from typing import Any

import numpy as np

from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Embedded
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.per_input import Results, compute
from sruserve.server.tasks.requests import SequenceRequest
from sruserve.server.tasks.sequences import SequenceReader
from sruserve.server.tasks.task import Task


class NormRequest(SequenceRequest):
    """Texts or features to measure, or the next chunks of them."""


class NormTask(Task[NormRequest, ServedModel]):
    """Measure inputs.

    Return the Euclidean norm of the output at the last step.
    """

    name, schema = "encode", NormRequest
    route, prefix, streams = "norm", "norm", True

    async def run(
        self, caller: Caller, request: NormRequest, served: ServedModel, cost: int
    ) -> Results:
        """Measure the inputs of a request. cost: bytes of the request, for the queue."""
        state_output, kind = served.state_output(request), JobKind.EMBED
        items = await SequenceReader().read(caller, request, served, self.limits, cost)
        return await compute(
            caller, request, served, self.limits, cost, kind, items, state_output=state_output
        )

    def describe(
        self, served: ServedModel, item: SequenceInput, result: Embedded
    ) -> dict[str, Any]:
        """The norm; null before the first step."""
        norm = None if result.vector is None else float(np.linalg.norm(result.vector))
        return {"norm": norm, "state": served.seal_state(result.state)}
