"""The ASGI application: hot routes straight from a dictionary, all others through FastAPI."""

import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from sruserve.model.errors import ModelError
from sruserve.server.api.call import Call, Message, Receive, Send
from sruserve.server.api.classify import ClassifyRoute
from sruserve.server.api.completions import CompletionRoute
from sruserve.server.api.constraints import Constraints
from sruserve.server.api.encode import EncodeRoute
from sruserve.server.api.endpoint import Endpoint
from sruserve.server.api.frames import Frames
from sruserve.server.api.kserve.http import PREFIX as KSERVE
from sruserve.server.api.kserve.http import KServe
from sruserve.server.api.kserve.service import Inference
from sruserve.server.api.limits import NUMBER_BYTES, InputLimits
from sruserve.server.api.pages import create_pages
from sruserve.server.api.predict import PredictEndpoint
from sruserve.server.api.routes import Routes
from sruserve.server.api.score import ScoreRoute
from sruserve.server.api.socket import Sockets
from sruserve.server.api.streams.mount import PREFIX as STREAMS
from sruserve.server.api.streams.mount import StreamMount
from sruserve.server.api.tag import TagRoute
from sruserve.server.connections import Connections, divide_files
from sruserve.server.errors import NoProcess, OriginNotAllowed, ServeError
from sruserve.server.grpc_port import wants_grpc
from sruserve.server.intake import Intake
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.metrics import connections_open
from sruserve.server.metrics_page import PATH as METRICS
from sruserve.server.metrics_page import MetricsPage
from sruserve.server.origins import Origins, answer_preflight, readable
from sruserve.server.probes import PATHS as PROBES
from sruserve.server.probes import answer_probe
from sruserve.server.process_limits import process_limit
from sruserve.server.pulse import Pulse, Watched
from sruserve.server.settings import Settings, SettingsError
from sruserve.server.streams.opening import open_streams

if TYPE_CHECKING:
    from sruserve.server.grpc_server import GrpcServer

log = logging.getLogger("sruserve.server")

ASGI = Callable[[Message, Receive, Send], Awaitable[None]]


class Application:
    """Serves once its lifespan has started; any ASGI server can run it."""

    def __init__(self, settings: Settings, pulse: Pulse | None = None) -> None:
        self.settings = settings
        self._pulse = pulse
        self.lifecycle = Lifecycle(settings)
        self.metrics = MetricsPage()
        self._pages = create_pages(self.lifecycle)
        self._hot: dict[str, Endpoint] = {}
        self._mounts: dict[str, ASGI] = {}  # by the beginning of the paths that they serve
        limit = process_limit()
        self.constraints = Constraints(
            settings.max_grammar_bytes, startable=limit and limit // settings.workers
        )
        self.grpc: GrpcServer | None = None
        self.origins = Origins((settings.allowed_origins or "").split(","), settings.host)
        self.intake = Intake(
            settings.max_queue_bytes,
            settings.receive_grace_seconds,
            settings.receive_bytes_per_second,
            settings.max_body_bytes,
        )
        most, self._grpc_connections = divide_files(settings.max_connections, wants_grpc(settings))
        self.connections = Connections(most, connections_open)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                origin = self.origins.check(scope)
            except OriginNotAllowed as problem:
                await Call(scope, receive, send).refuse(problem)
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
                    await route(Call(scope, receive, send))
                return
            if path == METRICS and scope["method"] == "GET":
                try:
                    await self.metrics.answer(send)
                except NoProcess as problem:
                    await Call(scope, receive, send).refuse(problem)
                return
            if path in PROBES and scope["method"] == "GET":
                await answer_probe(path, self.lifecycle, send)
                return
            for prefix, mounted in self._mounts.items():
                if path == prefix or path.startswith(prefix + "/"):
                    with self.lifecycle.answering:
                        await mounted(scope, receive, send)
                    return
        elif scope["type"] == "websocket":
            with self.lifecycle.answering:
                await self._sockets.connect(scope, receive, send)
            return
        elif scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        await self._pages(scope, receive, send)

    async def _lifespan(self, scope: Message, receive: Receive, send: Send) -> None:
        """Start before the first request and stop after the last. A failure ends in one line."""
        await receive()
        scope.setdefault("state", {}).update(intake=self.intake, connections=self.connections)
        try:
            await self.lifecycle.start()
            inference = self._add_routes()
            await self.streams.start()
            await self._open_grpc(inference)
        except (ModelError, ServeError, SettingsError, OSError) as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        if self._pulse is not None:
            self._pulse.start(self._watched)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if self.grpc is not None:
            await self.grpc.stop()
        await self.lifecycle.stop()
        await self.streams.stop()
        self.constraints.close()
        await send({"type": "lifespan.shutdown.complete"})

    def _watched(self) -> Iterable[Watched]:
        """What ends the process when it has ended."""
        yield from self.lifecycle.repository.engines
        if self.grpc is not None:
            yield self.grpc

    def _add_routes(self) -> Inference:
        settings = self.settings
        limits = self.limits = InputLimits(
            body_bytes=settings.max_body_bytes,
            input_bytes=settings.max_input_bytes,
            inputs=settings.max_inputs,
            new_tokens=settings.max_new_tokens,
            # a reply may be about as long as a request, and all that wait as a queue
            reply_numbers=settings.max_body_bytes // NUMBER_BYTES,
            unsent_numbers=settings.max_queue_bytes // NUMBER_BYTES,
            queue_bytes=settings.max_queue_bytes,
            queue_seconds=settings.queue_timeout_ms / 1000,
        )
        catalogue, tenants = self.lifecycle.catalogue, self.lifecycle.tenants
        routes = Routes(
            ClassifyRoute(catalogue, tenants, limits),
            TagRoute(catalogue, tenants, limits),
            EncodeRoute(catalogue, tenants, limits),
            ScoreRoute(catalogue, tenants, limits),
            CompletionRoute(
                catalogue, tenants, limits, settings.sse_ping_seconds, self.constraints
            ),
        )
        predict = PredictEndpoint(tenants, routes.classify, settings.max_batch_tokens)
        self._hot = {route.path: route for route in (*routes, predict)}
        self.streams = open_streams(settings, tenants)
        self.lifecycle.repository.on_end += [self.streams.end, self.constraints.end]
        self._mounts[STREAMS] = StreamMount(
            lambda kind: kind(self.streams, catalogue, tenants, limits, routes), self._pages
        )
        inference = Inference(self.lifecycle, routes, self.streams, limits)
        self._mounts[KSERVE] = KServe(tenants, inference, limits)
        self._sockets = Sockets(
            Frames(catalogue, tenants, routes), self.origins, max(1, self.connections.most // 2)
        )
        self.lifecycle.on_drain.append(self._sockets.drain)
        return inference

    async def _open_grpc(self, inference: Inference) -> None:
        if self._grpc_connections:
            # gRPC's core writes a line for each call with headers that cannot be
            os.environ.setdefault("GRPC_VERBOSITY", "NONE")
            # what it needs is not always installed
            from sruserve.server.grpc_server import GrpcServer

            most = self._grpc_connections
            self.grpc = GrpcServer(self.settings, self.lifecycle, inference, most)
            await self.grpc.start()


def create_app(settings: Settings, pulse: Pulse | None = None) -> Application:
    """The application that `settings` describe; nothing is loaded before its lifespan starts."""
    return Application(settings, pulse)
