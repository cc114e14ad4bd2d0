"""Embed: one vector for each text or sequence of features, for comparing and searching.

The vector is the output that the pooling of the model's config makes at the last step. A classifier
reads its scores from that row, through the layers of its head. An encoder has no pooling, so its
vector is its last output. The vector is not normalised.
"""

from typing import Any

from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Embedded
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.errors import InvalidRequest
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.encode import EncodeTask
from sruserve.server.tasks.per_input import Results, compute
from sruserve.server.tasks.requests import EmbedRequest
from sruserve.server.tasks.sequences import SequenceReader
from sruserve.server.tasks.task import Task

_INPUTS = SequenceReader()


class EmbedTask(Task[EmbedRequest, ServedModel]):
    """The pooled output at the last step, (width), float32."""

    name, schema = "classify", EmbedRequest
    route, prefix, is_default = "embeddings", "emb", False
    other_names = (EncodeTask.name,)

    async def run(
        self, caller: Caller, request: EmbedRequest, served: ServedModel, cost: int
    ) -> Results:
        """Compute the vectors of a request's inputs. cost: bytes of the request, for the queue.

        Raises `InvalidRequest` if the model has no such vectors.
        """
        width = vector_width(served)
        if request.dimensions not in (None, width):
            raise InvalidRequest(
                f"the vectors of {served.name} have {width} numbers and cannot be shortened: leave "
                f"out 'dimensions', or send {width}",
                param="dimensions",
            )
        state_output = served.state_output(request)
        items = await _INPUTS.read(caller, request, served, self.limits, cost)
        return await compute(
            caller,
            request,
            served,
            self.limits,
            cost,
            JobKind.EMBED,
            items,
            state_output=state_output,
            numbers=len(items) * vector_width(served),
        )

    def describe(
        self, served: ServedModel, item: SequenceInput, result: Embedded
    ) -> dict[str, Any]:
        del item
        vector = None if result.vector is None else result.vector.tolist()
        return {"embedding": vector, "state": served.seal_state(result.state)}


def vector_width(served: ServedModel) -> int:
    """The numbers of a model's vector; raises `InvalidRequest` if the model has none."""
    config = served.model.config
    if config.task == EncodeTask.name and config.rnn.not_streamable_because is not None:
        raise InvalidRequest(
            f"{served.name} has no vector of a whole input, because "
            f"{config.rnn.not_streamable_because}: its last output has not read the input in both "
            "directions; pool the outputs of /v1/encode yourself",
            param="model",
        )
    width = served.model.network.pooled_width
    if width is None:
        raise InvalidRequest(
            f"{served.name} has no vectors, because its ONNX graph returns scores alone: serve the "
            "folder that it was exported from",
            param="model",
        )
    return width
