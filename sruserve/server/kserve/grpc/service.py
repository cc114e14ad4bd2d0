"""KServe v2 over gRPC: every method of Triton's service, with the same core as HTTP."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict
from tritonclient.grpc import service_pb2 as proto

from sruserve.server.auth import Tenant
from sruserve.server.errors import InputTooLong, ModelControlRefused, Unsupported
from sruserve.server.http.parse_turns import ParseTurns
from sruserve.server.kserve.choosing import reply_numbers
from sruserve.server.kserve.errors import explain
from sruserve.server.kserve.grpc.call import GrpcCall, GrpcEndpoint, Metadata
from sruserve.server.kserve.grpc.calls import ConcurrentCallLimit
from sruserve.server.kserve.grpc.codec import parse, read_request, write_response
from sruserve.server.kserve.grpc.parts import parsing_cost
from sruserve.server.kserve.grpc.probes import Probes
from sruserve.server.kserve.inference import Inference
from sruserve.server.kserve.messages import InferRequest
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.offload import LONG_BYTES, offload, owner
from sruserve.server.settings import Settings, variable_name
from sruserve.server.tasks.limits import NUMBER_BYTES

_DESCRIBED = proto.DESCRIPTOR.services_by_name["GRPCInferenceService"]
SERVICE = _DESCRIBED.full_name

Answer = Callable[[Any], Awaitable[Mapping[str, Any]]]


class GrpcService:
    """Answers in tritonclient's messages. It parses requests itself to report malformed ones.

    turns: those of the event loop's connections.
    """

    def __init__(
        self, settings: Settings, lifecycle: Lifecycle, inference: Inference, turns: ParseTurns
    ) -> None:
        self._lifecycle, self._inference, self._turns = lifecycle, inference, turns
        self._controls_http_only = settings.model_control == "http"
        tenants = lifecycle.tenants
        self._infer = GrpcEndpoint(f"/{SERVICE}/ModelInfer", tenants)
        self._control = GrpcEndpoint(f"/{SERVICE}", tenants)
        self._calls = ConcurrentCallLimit(settings, lifecycle)

    def handlers(self, probes: Probes) -> dict[str, grpc.RpcMethodHandler]:
        """The handlers by method."""
        answers: dict[str, Answer] = {
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        behaviours = {
            "ModelInfer": self._calls.unary(self._infer, self._model_infer),
            "ServerLive": probes.unary(self._server_live, read=False),
            "ServerReady": probes.unary(self._server_ready, read=False),
            "ModelReady": probes.unary(self._model_ready),
        }
        handlers = {}
        for method in _DESCRIBED.methods:
            name, kind, reply = method.name, *map(_class, (method.input_type, method.output_type))
            write = reply.SerializeToString
            if name == "ModelStreamInfer":
                behaviour = self._calls.stream(self._infer, self._stream_infer)
                handlers[name] = grpc.stream_stream_rpc_method_handler(behaviour, None, write)
                continue
            answer = partial(self._ask, answers.get(name, _unsupported), kind, reply)
            behaviour = behaviours.get(name) or self._calls.unary(self._control, answer)
            handlers[name] = grpc.stream_unary_rpc_method_handler(behaviour, None, write)
        return handlers

    async def _stream_infer(
        self, data: bytes, metadata: Metadata, count_reply: Callable[[Any], object]
    ) -> Any:
        """The reply to one request of a stream. An error is a reply, so the stream continues."""

        async def work(rpc: GrpcCall, tenant: Tenant) -> Any:
            reply = await self._model_infer(data, rpc, tenant)
            count_reply(reply)
            return reply

        rpc = await self._infer.ask(metadata, work)
        if rpc.problem is None:
            rpc.reply.parameters["triton_final_response"].bool_param = True
            return proto.ModelStreamInferResponse(infer_response=rpc.reply)
        return proto.ModelStreamInferResponse(
            error_message=explain(rpc.problem).message,
            infer_response=proto.ModelInferResponse(id=rpc.id),
        )

    async def _model_infer(self, data: bytes, rpc: GrpcCall, tenant: Tenant) -> Any:
        with self._lifecycle.answering:
            cost = len(data)
            rpc.count_body(self._inference.limits, cost)
            request = await self._read(data, rpc)
            del data
            rpc.id = request.id
            self._inference.admit(tenant, request.model, request.version, cost)
            rpc.model = self._inference.find(request.model, request.version).name
            response = await self._inference.infer(rpc, tenant, request, cost)
            size = NUMBER_BYTES * reply_numbers(response.outputs, request.outputs)
            with self._inference.reserve_reply(request, response):
                long = size > LONG_BYTES
                return await offload(long, write_response, response, cost=size, caller=rpc)

    async def _read(self, data: bytes, rpc: GrpcCall) -> InferRequest:
        """Parse an inference: a long one on a thread, one of many fields in its turn."""
        size = len(data)
        if size > LONG_BYTES:
            return await offload(True, read_request, data, cost=size)
        cost = parsing_cost(proto.ModelInferRequest, data)
        if cost and (begun := self._turns.take(cost, owner.get())) is not None:
            await rpc.wait(begun)
        return read_request(data)

    async def _ask(
        self, answer: Answer, kind: Any, reply: Any, data: bytes, rpc: GrpcCall, tenant: Tenant
    ) -> Any:
        """Answer with the reply of the JSON protocol."""
        del rpc, tenant  # all tenants have the same models
        if len(data) > LONG_BYTES:
            raise InputTooLong(
                f"the message has {len(data)} bytes, over the limit of {LONG_BYTES}: send less"
            )
        message = reply()
        await write_json(await answer(parse(kind, data)), message)
        return message

    def _server_live(self, _: bytes) -> Any:
        return proto.ServerLiveResponse(live=True)

    def _server_ready(self, _: bytes) -> Any:
        return proto.ServerReadyResponse(ready=self._inference.ready())

    def _model_ready(self, data: bytes) -> Any:
        request = parse(proto.ModelReadyRequest, data)
        ready = self._inference.model_ready(request.name, request.version)
        return proto.ModelReadyResponse(ready=ready)

    async def _server_metadata(self, _: Any) -> Mapping[str, Any]:
        return self._inference.server_metadata()

    async def _model_metadata(self, request: Any) -> Mapping[str, Any]:
        return self._inference.metadata(request.name, request.version)

    async def _model_config(self, request: Any) -> Mapping[str, Any]:
        return {"config": self._inference.config(request.name, request.version)}

    async def _model_statistics(self, request: Any) -> Mapping[str, Any]:
        return self._inference.statistics(request.name, request.version)

    async def _repository_index(self, request: Any) -> Mapping[str, Any]:
        return {"models": self._inference.index(request.ready)}

    async def _load(self, request: Any) -> Mapping[str, Any]:
        self._check_control()
        await self._inference.load(request.model_name, request.parameters)
        return {}

    async def _unload(self, request: Any) -> Mapping[str, Any]:
        self._check_control()
        await self._inference.unload(request.model_name)
        return {}

    def _check_control(self) -> None:
        """Raise `ModelControlRefused` if models are loaded and unloaded over HTTP alone."""
        if self._controls_http_only:
            raise ModelControlRefused(
                "this server loads and unloads models over HTTP only "
                f"({variable_name('model_control')}=http): POST to /v2/repository/models/NAME/load"
            )


async def _unsupported(request: Any) -> Mapping[str, Any]:
    name = request.DESCRIPTOR.name
    if "SharedMemory" in name:
        raise Unsupported("shared memory is not supported: send tensors in the request")
    raise Unsupported("requests cannot change log and trace settings; ask the operator")


async def write_json(value: Mapping[str, Any], message: Any) -> None:
    """Write a reply of the JSON protocol into a message.

    Each model of a list gets a turn of the event loop, since its statistics take 0.3 ms.
    """
    for name, field in value.items():
        if isinstance(field, list) and field and isinstance(field[0], dict):
            for entry in field:
                ParseDict(entry, getattr(message, name).add(), ignore_unknown_fields=True)
                await asyncio.sleep(0)
        else:
            ParseDict({name: field}, message, ignore_unknown_fields=True)


def _class(message: Any) -> Any:
    return getattr(proto, message.name)
