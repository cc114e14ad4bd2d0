"""The ASGI application: a dictionary finds the hot routes, and a router all others."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from sruserve.model.errors import ModelError
from sruserve.server.auth import Tenants
from sruserve.server.clocks import SYSTEM_CLOCKS, Clocks
from sruserve.server.errors import NoProcess, ServeError
from sruserve.server.file_limits import divide_files
from sruserve.server.freed_memory import FreedMemory
from sruserve.server.http import (
    docs,
    index,
    management,
    models,
    predict,
    state_view,
    tokenize,
    v1_routes,
)
from sruserve.server.http.call import HttpCall, Message, Receive, Send
from sruserve.server.http.connections import Connections
from sruserve.server.http.endpoint import HttpEndpoint
from sruserve.server.http.errors import OriginNotAllowed
from sruserve.server.http.intake import Intake
from sruserve.server.http.models import ModelPages
from sruserve.server.http.observed import refuse
from sruserve.server.http.openapi import create_document
from sruserve.server.http.openapi_parts import Json
from sruserve.server.http.origins import Origins, answer_preflight, readable
from sruserve.server.http.responses_api import routes as responses_api
from sruserve.server.http.router import Router
from sruserve.server.http.routes import Mounted, Route
from sruserve.server.http.streams import routes as streams
from sruserve.server.http.streams.endpoints import Context
from sruserve.server.kserve.grpc.port import NO_CIPHER_OF_TLS_1_2, wants_grpc
from sruserve.server.kserve.http import routes as kserve
from sruserve.server.kserve.http.management import UnknownRouteEndpoint
from sruserve.server.kserve.inference import Inference
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.metrics.metrics import (
    certificate_expiry,
    connections_limit,
    connections_open,
)
from sruserve.server.metrics.page import MetricsPage
from sruserve.server.observation.opening import Observers
from sruserve.server.offload import run_in_thread
from sruserve.server.origin_list import read_origins
from sruserve.server.process_limits import process_limit
from sruserve.server.pulse import Pulse, Watched
from sruserve.server.settings import Settings, SettingsError, read_certificates
from sruserve.server.streams.opening import create_streams
from sruserve.server.streams.service import Streams
from sruserve.server.tasks.classify import ClassifyTask
from sruserve.server.tasks.complete import CompleteTask
from sruserve.server.tasks.constraint_cache import ConstraintCache
from sruserve.server.tasks.endpoint import Endpoint
from sruserve.server.tasks.limits import InputLimits
from sruserve.server.tasks.table import TABLE, Table, Tasks, default_tasks
from sruserve.server.tls.certificates import Certificates
from sruserve.server.tuning import DEFAULT_TUNING, Tuning
from sruserve.server.websocket import routes as websocket
from sruserve.server.websocket.connection import WebSocketEndpoint
from sruserve.server.websocket.endpoint import SessionEndpoint

if TYPE_CHECKING:
    from sruserve.server.kserve.grpc.server import GrpcServer

log = logging.getLogger("sruserve.server")

_OTHER_ROUTES: tuple[Route[Any], ...] = (
    *predict.ROUTES,
    *tokenize.ROUTES,
    *responses_api.ROUTES,
    *state_view.ROUTES,
    *streams.ROUTES,
    *websocket.ROUTES,
    *models.ROUTES,
    *management.ROUTES,
    *index.ROUTES,
    *docs.ROUTES,
    *kserve.ROUTES,
)


def _document(table: Table) -> Json:
    """The OpenAPI document of all routes. table: of the tasks."""
    return create_document((*v1_routes.routes(table), *_OTHER_ROUTES))


ROUTES: tuple[Route[Any], ...] = (*v1_routes.routes(), *_OTHER_ROUTES)
MakeStreams = Callable[[Settings, Tenants, Clocks], Streams]


class Application:
    """Serves once its lifespan has started; any ASGI server can run it.

    clocks: of engines, connections, rates, tokens and streams; timers are the event loop's.
    table: the tasks that it serves.
    """

    def __init__(
        self,
        settings: Settings,
        pulse: Pulse | None = None,
        clocks: Clocks = SYSTEM_CLOCKS,
        make_streams: MakeStreams = create_streams,
        certificates: Certificates | None = None,
        tuning: Tuning = DEFAULT_TUNING,
        table: Table = TABLE,
    ) -> None:
        default_tasks(table)  # a mistake in the table ends the start before models load
        self.settings, self._tuning, self._table = settings, tuning, table
        self.certificates = certificates or read_certificates(settings)
        if self.certificates is not None:
            self.certificates.report_to(certificate_expiry)
        self._pulse, self._clocks, self._make_streams = pulse, clocks, make_streams
        self.lifecycle = Lifecycle(settings, clocks, tuning)
        self.metrics = MetricsPage(clock=clocks.monotonic)
        self._freed_memory = FreedMemory()
        self._document = partial(_document, table)
        self._documentation = docs.Documentation(self._document)
        self._index = index.Index(settings.page)
        self._hot: dict[str, HttpEndpoint] = {}
        limit = process_limit()
        self.constraints = ConstraintCache(
            settings.max_grammar_bytes,
            startable=limit and limit // settings.workers,
            clock=clocks.monotonic,
        )
        self.grpc: GrpcServer | None = None
        self.origins = Origins(read_origins(settings.allowed_origins or ""), settings.host)
        self.intake = Intake(
            settings.max_queue_bytes,
            settings.receive_grace_seconds,
            settings.receive_bytes_per_second,
            settings.max_body_bytes,
            clocks.monotonic,
        )
        max_connections, self.grpc_connections = divide_files(
            settings.max_connections, settings.max_grpc_connections if wants_grpc(settings) else 0
        )
        self.connections = Connections(max_connections, connections_open, clocks.monotonic)
        connections_limit(max_connections)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                origin = self.origins.check(scope)
            except OriginNotAllowed as problem:
                await refuse(HttpCall(scope, receive, send), problem)
                return
            if origin is not None:
                if scope["method"] == "OPTIONS":
                    await answer_preflight(scope, send, origin)
                    return
                send = readable(send, origin)
            path = scope["path"]
            route = self._hot.get(path)
            if route is not None and scope["method"] == "POST":
                with self.lifecycle.answering:
                    await route(HttpCall(scope, receive, send))
                return
            await self.router(scope, receive, send)
        elif scope["type"] == "websocket":
            with self.lifecycle.answering:
                await self._sockets.connect(scope, receive, send)
        else:
            await self._lifespan(scope, receive, send)

    async def _lifespan(self, scope: Message, receive: Receive, send: Send) -> None:
        """Start before the first request, and stop after the last. A failure logs one line."""
        await receive()
        scope.setdefault("state", {}).update(
            intake=self.intake, connections=self.connections, certificates=self.certificates
        )
        try:
            await self.lifecycle.start()
            self._observers = Observers(self.settings)
            if self._observers.requests is not None:
                Endpoint.observer = self._observers.requests
            inference = self._add_endpoints()
            await self.streams.start()
            await self._open_grpc(inference)
        except (ModelError, ServeError, SettingsError, OSError) as error:
            log.error("cannot start: %s", error)
            await send({"type": "lifespan.startup.failed"})
            return
        if self._pulse is not None:
            self._pulse.start(self._watched, self._look_at_memory)
        if self.certificates is not None:
            self.certificates.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self.certificates is not None:
            self.certificates.stop()
        if self.grpc is not None:
            await self.grpc.stop()
        await self.lifecycle.stop()
        await asyncio.gather(self.streams.stop(), self._close_observers())
        self.constraints.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _close_observers(self) -> None:
        """Log and trace the last requests, while the last steps are stored."""
        if self._observers.requests is not None:
            Endpoint.observer = None
            with suppress(NoProcess):
                await run_in_thread("observers", self._observers.close)

    def _look_at_memory(self) -> None:
        self.lifecycle.report_memory()
        self._freed_memory.look(self._clocks.monotonic())

    def _watched(self) -> Iterable[Watched]:
        """The engines and servers that must not end before the process."""
        yield from self.lifecycle.repository.engines
        if self.grpc is not None:
            yield self.grpc

    def _add_endpoints(self) -> Inference:
        settings = self.settings
        limits = self.limits = InputLimits.of(
            settings, self._clocks.monotonic, self._tuning.turn_characters
        )
        catalogue, tenants = self.lifecycle.catalogue, self.lifecycle.tenants
        tasks = self.tasks = Tasks.create(catalogue, limits, self.constraints, self._table)
        endpoints = v1_routes.mount(tasks, tenants, settings.sse_ping_seconds)
        hot: list[tuple[Route[Any], HttpEndpoint]] = [
            *endpoints,
            *predict.mount(tenants, tasks[ClassifyTask], settings.max_batch_tokens),
            *tokenize.mount(tasks, tenants),
            *responses_api.mount(tasks[CompleteTask], tenants, settings.sse_ping_seconds),
        ]
        self._hot = {route.path: endpoint for route, endpoint in hot}
        self.streams = self._make_streams(settings, tenants, self._clocks)
        self.lifecycle.repository.on_end.extend((self.streams.end, self.constraints.end))
        by_task = {endpoint.task: endpoint for _, endpoint in endpoints}
        context = Context(self.streams, catalogue, tenants, limits, tasks, by_task)
        inference = Inference(self.lifecycle, tasks, self.streams, limits)
        fast: list[Mounted] = [
            *hot,
            *state_view.mount(catalogue, tenants, limits),
            *streams.mount(context),
            *kserve.mount(tenants, inference, limits),
            *management.mount(self.lifecycle, self.metrics),
        ]
        slow: list[Mounted] = [
            *websocket.mount(tenants),
            *models.mount(ModelPages(self.lifecycle)),
            *index.mount(self._index),
            *docs.mount(self._documentation),
        ]
        self.router = Router(fast, self.lifecycle.answering, slow, self._document)
        self.router.fallbacks[kserve.PREFIX] = UnknownRouteEndpoint(tenants, self.router.explain)
        self._sockets = WebSocketEndpoint(
            SessionEndpoint(catalogue, tenants, tasks),
            self.origins,
            self.connections.max_sockets,
        )
        self.lifecycle.on_drain.append(self._sockets.drain)
        return inference

    async def _open_grpc(self, inference: Inference) -> None:
        if self.grpc_connections:
            # otherwise gRPC's core logs a line for each call with invalid headers
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")
            if self.settings.tls_client_ca is not None:
                os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", NO_CIPHER_OF_TLS_1_2)
            # gRPC is an optional dependency
            from sruserve.server.kserve.grpc.server import GrpcServer

            self.grpc = GrpcServer(
                self.settings,
                self.lifecycle,
                inference,
                self.grpc_connections,
                self.intake.turns,
                self.certificates,
                self._tuning.grpc_hello_seconds,
                self._clocks.monotonic,
            )
            await self.grpc.start()


def create_app(
    settings: Settings, pulse: Pulse | None = None, certificates: Certificates | None = None
) -> Application:
    """Create the application; no model is loaded before its lifespan starts."""
    return Application(settings, pulse, certificates=certificates)
