"""The gRPC server: its port, its limits, its health."""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from sruserve.server.ending import GRPC_SECONDS
from sruserve.server.http.errors import RouteNotFound
from sruserve.server.http.parse_turns import ParseTurns
from sruserve.server.kernel_buffers import limit_buffers_of_port
from sruserve.server.kserve.grpc.codec import parse
from sruserve.server.kserve.grpc.connection_shares import ConnectionShares
from sruserve.server.kserve.grpc.core import is_running, new_server
from sruserve.server.kserve.grpc.port_connections import PortConnections
from sruserve.server.kserve.grpc.probes import Probes
from sruserve.server.kserve.grpc.service import SERVICE, GrpcService
from sruserve.server.kserve.grpc.tls import server_credentials
from sruserve.server.kserve.inference import Inference
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.settings import Settings, SettingsError, variable_name
from sruserve.server.tls.certificates import Certificates
from sruserve.server.tuning import DEFAULT_TUNING

log = logging.getLogger("sruserve.server")

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_CALLS_OF_CONNECTION = 128  # a client delays further calls, and begins them in order
_AGE_SECONDS = 3600  # before a connection accepts no more calls, and then before its calls end


def _options(settings: Settings, connections: int, hello_seconds: int) -> list[tuple[str, int]]:
    """The limits that gRPC's core enforces."""
    idle_ms = 1000 * settings.keep_alive_seconds
    return [
        ("grpc.so_reuseport", 1),  # every worker listens on the same port
        ("grpc.max_receive_message_length", settings.max_body_bytes),
        ("grpc.max_send_message_length", -1),  # replies have bounds of their own
        # 64 KiB of a message may wait unread; with probes of the bandwidth that is 4 MiB
        ("grpc.http2.bdp_probe", 0),
        ("grpc.max_concurrent_streams", max(_CALLS_OF_CONNECTION, settings.grpc_streams)),
        ("grpc.max_allowed_incoming_connections", connections),
        ("grpc.server_handshake_timeout_ms", 1000 * hello_seconds),
        ("grpc.max_connection_idle_ms", idle_ms),
        ("grpc.keepalive_time_ms", idle_ms),  # detects clients that left without closing
        ("grpc.max_connection_age_ms", 1000 * _AGE_SECONDS),
        ("grpc.max_connection_age_grace_ms", 1000 * _AGE_SECONDS),
    ]


class GrpcServer:
    """KServe v2 and gRPC's health protocol on a port of their own.

    connections: the limit of open connections.
    parse_turns: of all connections of the event loop.
    hello_seconds: for the handshake of an HTTP/2 connection. clock: monotonic seconds.
    port: its port, once started.
    probes: the limits of its probes.
    """

    what, busy, turns = "the gRPC server", False, 0  # see `Watched`

    def __init__(
        self,
        settings: Settings,
        lifecycle: Lifecycle,
        inference: Inference,
        connections: int,
        parse_turns: ParseTurns,
        certificates: Certificates | None = None,
        hello_seconds: int = DEFAULT_TUNING.grpc_hello_seconds,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.port = 0
        self._certificates, self._clock = certificates, clock
        self._settings = settings
        self._stopping = False
        self._connections = connections
        self._looking: asyncio.Task[None] | None = None
        self._server = new_server(_options(settings, connections, hello_seconds))
        self.probes = Probes(inference.ready)
        service = GrpcService(settings, lifecycle, inference, parse_turns)
        self._server.add_registered_method_handlers(SERVICE, service.handlers(self.probes))
        self._server.add_registered_method_handlers(
            _HEALTH, _Health(inference).handlers(self.probes)
        )

    @property
    def alive(self) -> bool:
        """Whether it accepts calls, or is being stopped."""
        return self._stopping or is_running(self._server)

    async def start(self) -> None:
        """Listen; raises `SettingsError` if the port cannot be used."""
        host, port = self._settings.host, self._settings.grpc_port
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._certificates is None:
                self.port = self._server.add_insecure_port(address)
            else:
                credentials = server_credentials(self._certificates, self._clock)
                self.port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            raise SettingsError(
                f"cannot listen on {address} for gRPC: set {variable_name('grpc_port')} to another "
                "port, to 0 for a free one, or to off"
            ) from None
        limit_buffers_of_port(self.port)
        await self._server.start()
        shares = ConnectionShares(self._connections)
        connections = PortConnections(self.port, shares, self._clock)
        self._looking = asyncio.create_task(connections.run())
        self._looking.add_done_callback(_log_failure)
        log.info("gRPC is on %s port %d", host, self.port)

    async def stop(self) -> None:
        """Accept no more calls, and end the open ones."""
        self._stopping = True
        if self._looking is not None:
            self._looking.cancel()
        await self._server.stop(GRPC_SECONDS)


def _log_failure(looking: asyncio.Task[None]) -> None:
    if not looking.cancelled() and (error := looking.exception()) is not None:
        log.critical("one address may take all gRPC connections now; restart", exc_info=error)


# grpcio-health-checking's asynchronous servicer limits neither the number of watchers nor the time
# of a probe's message, and after one watcher leaves, the others get no changes.
class _Health:
    """gRPC's health protocol: the server and its service are serving while they accept work."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference

    def handlers(self, probes: Probes) -> dict[str, grpc.RpcMethodHandler]:
        """The handlers by method."""
        write = health_pb2.HealthCheckResponse.SerializeToString
        check, watch = probes.unary(self._check), probes.watch(self._watch)
        return {
            "Check": grpc.stream_unary_rpc_method_handler(check, None, write),
            "Watch": grpc.stream_stream_rpc_method_handler(watch, None, write),
        }

    def _check(self, data: bytes) -> Any:
        status = self._status(_is_known(data))
        if status.status == status.SERVICE_UNKNOWN:
            raise RouteNotFound(
                "this server does not have that gRPC service: "
                "leave the name out to ask about the server"
            )
        return status

    def _watch(self, data: bytes) -> Callable[[], Any]:
        return partial(self._status, _is_known(data))

    def _status(self, known: bool) -> Any:
        statuses = health_pb2.HealthCheckResponse
        if not known:
            return statuses(status=statuses.SERVICE_UNKNOWN)
        ready = self._inference.ready()
        return statuses(status=statuses.SERVING if ready else statuses.NOT_SERVING)


def _is_known(data: bytes) -> bool:
    """Whether a health check names a service of this server."""
    return parse(health_pb2.HealthCheckRequest, data).service in ("", SERVICE)
