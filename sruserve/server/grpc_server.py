"""The gRPC server: its port, its limits, its health."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sruserve.server.api.kserve.grpc_service import SERVICE, GrpcService
from sruserve.server.api.kserve.service import Inference
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.settings import Settings, SettingsError, variable_name

log = logging.getLogger("sruserve.server")

_LOOK_SECONDS = 0.2  # between two looks of a client's watch at what it watches
_LAST_WORDS_SECONDS = 1.0  # after draining: for what is still on its way to clients


class GrpcServer:
    """KServe v2 and gRPC's health protocol on a port of their own.

    port: the one that it listens on, once started.
    """

    def __init__(self, settings: Settings, lifecycle: Lifecycle, inference: Inference) -> None:
        self.port = 0
        self._settings = settings
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", settings.max_body_bytes),
                ("grpc.max_send_message_length", -1),  # replies have bounds of their own
                ("grpc.so_reuseport", 1),  # every worker listens on the same port
            ]
        )
        service = GrpcService(lifecycle, inference, settings.max_queue_bytes)
        self._server.add_generic_rpc_handlers((service.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(_Health(inference), self._server)

    async def start(self) -> None:
        """Listen; raises `SettingsError` if that is not possible."""
        host, port = self._settings.host, self._settings.grpc_port
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            self.port = self._server.add_insecure_port(address)
        except RuntimeError:
            raise SettingsError(
                f"cannot listen on {address} for gRPC: set {variable_name('grpc_port')} to a free "
                "port, or to off"
            ) from None
        await self._server.start()
        log.info("gRPC is on %s port %d", host, self.port)

    async def stop(self) -> None:
        """Take no more calls, and end those that are left."""
        await self._server.stop(_LAST_WORDS_SECONDS)


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Serving while the server takes work, the service as much as all of it."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference

    async def Check(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.service not in ("", SERVICE):
            # as in `end_refused`: `abort` would leave the call to the garbage collector
            context.set_code(grpc.StatusCode.NOT_FOUND)
            context.set_details("there is no such service here")
        return self._status(request.service)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        del context
        told = None
        while True:
            status = self._status(request.service)
            if status != told:
                yield status
                told = status
            await asyncio.sleep(_LOOK_SECONDS)

    def _status(self, service: str) -> Any:
        statuses = health_pb2.HealthCheckResponse
        if service not in ("", SERVICE):
            return statuses(status=statuses.SERVICE_UNKNOWN)
        ready = self._inference.ready()
        return statuses(status=statuses.SERVING if ready else statuses.NOT_SERVING)
