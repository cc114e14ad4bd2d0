"""`POST /v2/models/{model}[/versions/{version}]/infer`."""

from collections.abc import Sequence

import numpy as np

from sruserve.server.auth import Tenant, Tenants
from sruserve.server.errors import InvalidRequest
from sruserve.server.http.call import HttpCall
from sruserve.server.http.json_turns import SHORT_JSON_BYTES, turn_to_parse
from sruserve.server.http.request_head import JSON_TYPE
from sruserve.server.kserve.choosing import reply_numbers
from sruserve.server.kserve.datatypes import BYTES, NUMBERS
from sruserve.server.kserve.http.compression import Unpacking, choose, pack
from sruserve.server.kserve.http.endpoint import KServeEndpoint
from sruserve.server.kserve.infer_body import InferHeader, read_request, write_response
from sruserve.server.kserve.inference import Inference
from sruserve.server.kserve.messages import InferRequest, InferResponse, Tensor
from sruserve.server.metrics.metrics import UNKNOWN_MODEL
from sruserve.server.offload import LONG_BYTES, offload
from sruserve.server.tasks.limits import NUMBER_BYTES, InputLimits

HEADER_LENGTH = b"inference-header-content-length"
_WORTH_PACKING = 1 << 10


class InferEndpoint(KServeEndpoint):
    """Run a model on tensors.

    The tensors are in JSON, or in binary after `Inference-Header-Content-Length` bytes of JSON.
    """

    path, schema = "/v2/infer", InferHeader

    def __init__(self, tenants: Tenants, inference: Inference, limits: InputLimits) -> None:
        super().__init__(tenants, (UNKNOWN_MODEL,))
        self._inference, self._limits = inference, limits

    async def serve(self, call: HttpCall, tenant: Tenant) -> None:
        model, version = (*call.path_values, "")[:2]
        call.model = self._inference.find(model, version).name
        request, cost = await self._read_request(call, tenant, model, version)
        response = await self._inference.infer(call, tenant, request, cost)
        with self._inference.reserve_reply(request, response):
            await self._send(call, request, response)

    async def _send(self, call: HttpCall, request: InferRequest, response: InferResponse) -> None:
        size = NUMBER_BYTES * reply_numbers(response.outputs, request.outputs)
        arguments = response, _binary(request, response)
        head, data = await offload(
            size > LONG_BYTES, write_response, *arguments, cost=size, caller=call
        )
        headers = [JSON_TYPE]
        body = head
        if data is not None:
            body = head + data
            headers = [
                (b"content-type", b"application/octet-stream"),
                (HEADER_LENGTH, b"%d" % len(head)),
            ]
        encoding = choose(call.header(b"accept-encoding"))
        if encoding is not None and len(body) > _WORTH_PACKING:
            long = len(body) > LONG_BYTES
            body = await offload(long, pack, body, encoding, cost=len(body), caller=call)
            headers.append((b"content-encoding", encoding.encode()))
        await call.reply_as(200, body, headers)

    async def _read_request(
        self, call: HttpCall, tenant: Tenant, model: str, version: str
    ) -> tuple[InferRequest, int]:
        """The request, and the size of its body in bytes."""
        body = await self._body(call)
        self._inference.admit(tenant, model, version, len(body))
        json_bytes = _header_length(call.header(HEADER_LENGTH), len(body))
        if json_bytes > SHORT_JSON_BYTES:
            await turn_to_parse(body[:json_bytes], call.connection, call)
        arguments = model, version, body, json_bytes
        long = len(body) > LONG_BYTES
        request = await offload(long, self._parse, *arguments, cost=len(body), caller=call)
        return request, len(body)

    async def _body(self, call: HttpCall) -> bytes:
        """The unpacked body; each piece after the first counts before it is unpacked."""
        body, encoding = await call.body(self._limits), call.header(b"content-encoding")
        if not encoding:
            return body
        unpacking = Unpacking(body, encoding, self._limits.body_bytes)
        del body  # so that it shrinks as it is unpacked
        while unpacking.body is None:
            piece = unpacking.next_bytes
            if unpacking.size:
                call.count_body(self._limits, unpacking.memory_bytes + piece)
            await offload(True, unpacking.unpack, cost=piece, caller=call)
        call.count_body(self._limits, unpacking.size)
        return unpacking.body

    def _parse(self, model: str, version: str, body: bytes, json_bytes: int) -> InferRequest:
        if json_bytes == 0 and body:
            return self._raw_request(model, version, body)
        return read_request(model, version, body, json_bytes)

    def _raw_request(self, model: str, version: str, body: bytes) -> InferRequest:
        """A request from a body without JSON: the model's only input, a text or numbers."""
        signature = self._inference.signature(model, version)
        spec, *further = signature.inputs
        free = spec.shape.count(-1)
        if further or free > 1:
            raise InvalidRequest(
                f"model '{model}' cannot read its inputs from a body without JSON: send "
                "them as JSON"
            )
        batch = (1,) if signature.max_batch_size else ()
        if spec.datatype == BYTES:
            return InferRequest(
                model, version, "", [Tensor(spec.name, BYTES, (*batch, *spec.shape), [body])]
            )
        dtype = NUMBERS[spec.datatype]
        row = dtype.itemsize * int(np.prod([size for size in spec.shape if size != -1]))
        if len(body) % row:
            raise InvalidRequest(
                f"the body has {len(body)} bytes, but '{spec.name}' of model '{model}' needs a "
                f"multiple of {row} bytes"
            )
        shape = tuple(len(body) // row if size == -1 else size for size in spec.shape)
        tensor = Tensor(spec.name, spec.datatype, (*batch, *shape), np.frombuffer(body, dtype))
        return InferRequest(model, version, "", [tensor])


def _header_length(header: str | None, size: int) -> int:
    """The length of the JSON in a body of `size` bytes: all of it without the header."""
    if header is None:
        return size
    if not (header.isascii() and header.isdigit() and len(header) < 20 and int(header) <= size):
        raise InvalidRequest(
            f"Inference-Header-Content-Length must be a number of bytes from 0 to {size}, the "
            "body's length"
        )
    return int(header)


def _binary(request: InferRequest, response: InferResponse) -> Sequence[str]:
    """The names of the outputs that the client requests in binary."""
    default = request.parameters.get("binary_data_output", False)
    flags = {
        output.name: output.parameters.get("binary_data", default) for output in request.outputs
    }
    return [output.name for output in response.outputs if flags.get(output.name, default) is True]
