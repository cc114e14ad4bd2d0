"""KServe v2 over gRPC: every method of Triton's service, on the core that HTTP has, too."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict
from tritonclient.grpc import service_pb2 as proto

from sruserve.server.api.kserve.grpc_call import Rpc, RpcEndpoint, end_refused
from sruserve.server.api.kserve.grpc_messages import parse, read_request, write_response
from sruserve.server.api.kserve.grpc_open import OpenCalls
from sruserve.server.api.kserve.problems import explain
from sruserve.server.api.kserve.service import Inference
from sruserve.server.api.route import LONG_BYTES
from sruserve.server.errors import InputTooLong, ServeError, Unsupported
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.tenants import Tenant

_DESCRIBED = proto.DESCRIPTOR.services_by_name["GRPCInferenceService"]
SERVICE = _DESCRIBED.full_name

_SHORT_BYTES = 64 << 10  # of a short body: the queue's bytes allow so many calls

Answer = Callable[[Any], Awaitable[Mapping[str, Any]]]


class GrpcService:
    """Answers in tritonclient's messages. Requests come as bytes, so that bad ones are told."""

    def __init__(self, lifecycle: Lifecycle, inference: Inference, queue_bytes: int) -> None:
        self._lifecycle, self._inference = lifecycle, inference
        tenants = lifecycle.tenants
        self._infer = RpcEndpoint(f"/{SERVICE}/ModelInfer", tenants)
        self._control = RpcEndpoint(f"/{SERVICE}", tenants)
        self._queue_bytes = queue_bytes
        self._open = OpenCalls(self._infer, self._most_open)

    def handler(self) -> grpc.GenericRpcHandler:
        """What a gRPC server is given."""
        probes = {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
        }
        answers: dict[str, Answer] = {
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._model_statistics,
            "RepositoryIndex": self._repository_index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        handlers = {}
        for method in _DESCRIBED.methods:
            name, kind, reply = method.name, *map(_class, (method.input_type, method.output_type))
            write = reply.SerializeToString
            if name == "ModelStreamInfer":
                handlers[name] = grpc.stream_stream_rpc_method_handler(self._stream, None, write)
                continue
            if name in probes:
                probe = partial(self._probe, probes[name], kind, reply)
                handlers[name] = grpc.unary_unary_rpc_method_handler(probe, None, write)
                continue
            answer: Callable[[bytes, Any], Awaitable[Any]] = self._model_infer
            if name != "ModelInfer":
                answer = partial(self._ask, answers.get(name, _unsupported), kind, reply)
            behaviour = self._open.unary(answer)
            handlers[name] = grpc.stream_unary_rpc_method_handler(behaviour, None, write)
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _most_open(self) -> int:
        """A call for every short body that the queues may hold."""
        return max(1, self._queue_bytes * len(self._lifecycle.catalogue) // _SHORT_BYTES)

    async def _model_infer(self, data: bytes, context: Any) -> Any:
        rpc = await self._inferred(data, context)
        return rpc.reply if rpc.problem is None else end_refused(context, rpc.problem)

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        """Answer in order; an error is told in its place, and the stream goes on."""
        async with self._open.one_more(context):
            async for data in requests:
                rpc = await self._inferred(data, context)
                if rpc.problem is None:
                    rpc.reply.parameters["triton_final_response"].bool_param = True
                    yield proto.ModelStreamInferResponse(infer_response=rpc.reply)
                else:
                    yield proto.ModelStreamInferResponse(
                        error_message=explain(rpc.problem).message,
                        infer_response=proto.ModelInferResponse(id=rpc.id),
                    )

    async def _inferred(self, data: bytes, context: Any) -> Rpc:
        async def work(rpc: Rpc, tenant: Tenant) -> Any:
            long = len(data) > LONG_BYTES
            request = await self._inference.read(long, len(data), read_request, data)
            rpc.id = request.id
            self._inference.admit(request.model, request.version, len(data))
            rpc.model = request.model
            response = await self._inference.infer(rpc, tenant, request)
            with self._inference.promise(response):
                return write_response(response)

        with self._lifecycle.answering():
            return await self._infer.ask(context, work)

    async def _ask(self, answer: Answer, kind: Any, reply: Any, data: bytes, context: Any) -> Any:
        """Answer with what the JSON protocol would."""

        async def work(rpc: Rpc, tenant: Tenant) -> Any:
            del rpc, tenant  # all of them see the same models
            if len(data) > LONG_BYTES:
                raise InputTooLong(f"the message has {len(data)} bytes and may have {LONG_BYTES}")
            return ParseDict(await answer(parse(kind, data)), reply(), ignore_unknown_fields=True)

        rpc = await self._control.ask(context, work)
        return rpc.reply if rpc.problem is None else end_refused(context, rpc.problem)

    async def _probe(self, answer: Any, kind: Any, reply: Any, data: bytes, context: Any) -> Any:
        """Answer whoever asks, at once."""
        try:
            return reply(**answer(parse(kind, data)))
        except ServeError as error:
            return end_refused(context, error)

    def _server_live(self, _: Any) -> dict[str, bool]:
        return {"live": True}

    def _server_ready(self, _: Any) -> dict[str, bool]:
        return {"ready": self._inference.ready()}

    def _model_ready(self, request: Any) -> dict[str, bool]:
        return {"ready": self._inference.model_ready(request.name, request.version)}

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
        await self._inference.load(request.model_name, request.parameters)
        return {}

    async def _unload(self, request: Any) -> Mapping[str, Any]:
        await self._inference.unload(request.model_name)
        return {}


async def _unsupported(request: Any) -> Mapping[str, Any]:
    what = request.DESCRIPTOR.name
    if "SharedMemory" in what:
        raise Unsupported("shared memory is not supported: send tensors in the request")
    raise Unsupported("log and trace settings are the operator's: no request changes them")


def _class(message: Any) -> Any:
    return getattr(proto, message.name)
