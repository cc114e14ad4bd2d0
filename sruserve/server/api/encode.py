"""`POST /v1/encode`: what a network without a head gives for each step."""

from typing import Any

from sruserve.server.api.long_json import listed
from sruserve.server.api.requests import EncodeRequest
from sruserve.server.api.sequences import SequenceRoute
from sruserve.server.api.served import Served
from sruserve.server.engine.jobs import Encoded, Item, Kind


class EncodeRoute(SequenceRoute[EncodeRequest]):
    """The outputs of the last layer, steps x features."""

    path, task, schema = "/v1/encode", "encode", EncodeRequest
    prefix = "enc"

    def kind(self, request: EncodeRequest) -> Kind:
        del request
        return Kind.ENCODE

    def numbers(self, served: Served, item: Item) -> int:
        return served.model.config.rnn.output_size * len(item.inputs)

    def result(self, served: Served, item: Item, result: Encoded) -> dict[str, Any]:
        del item
        return {"outputs": listed(result.outputs), "state": served.seal_state(result.state)}
