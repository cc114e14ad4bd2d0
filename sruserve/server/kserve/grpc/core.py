"""grpc.aio's server, robust against invalid paths and metadata of calls.

grpcio's accept loop decodes the path of a call to an unregistered method outside of all error
handling: a path that is not UTF-8 ends the loop, and the server with it. So all methods are
registered, which gRPC's core matches byte by byte, and other calls end before that loop.

grpcio also logs each metadata value that is not UTF-8, maybe a key, with a traceback. A call with
as many of them as fit into its headers would take tens of milliseconds. So it does for each call
whose client leaves before it has its reply.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import grpc
from grpc._cython import cygrpc

from sruserve.server.errors import Unsupported
from sruserve.server.kserve.grpc.call import end

_Core: Any = cygrpc.AioServer
_METADATA_MESSAGE = "Invalid encoding on %s"
_LEFT_MESSAGE = "raised in core by servicer method"


class _RegisteredOnly(cygrpc.AioServer):  # type: ignore[misc]
    """Accepts calls of registered methods; the others end as UNIMPLEMENTED."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._refusals: set[asyncio.Task[None]] = set()

    async def _request_call(self) -> None:
        """Refuse calls of unregistered methods instead of returning them to grpcio."""
        while True:
            state = await super()._request_call()
            context = cygrpc._ServicerContext(state, None, None, asyncio.get_running_loop())
            refusal = asyncio.create_task(end(context, Unsupported("Method not found!")))
            self._refusals.add(refusal)
            refusal.add_done_callback(self._refusals.discard)


class _Log(logging.Logger):
    """grpcio's logger without messages that clients cause; a filter would run too late."""

    def exception(self, msg: object, *args: Any, **kwargs: Any) -> None:
        if _LEFT_MESSAGE in str(msg):
            self.debug(msg, *args)
        elif msg != _METADATA_MESSAGE:
            super().exception(msg, *args, **kwargs)


logging.getLogger(cygrpc.__name__).__class__ = _Log


def new_server(options: Sequence[tuple[str, int]]) -> grpc.aio.Server:
    """A server whose methods are added by `add_registered_method_handlers`."""
    cygrpc.AioServer = _RegisteredOnly  # its constructor makes one of these
    try:
        return grpc.aio.server(options=options)
    finally:
        cygrpc.AioServer = _Core


def is_running(server: grpc.aio.Server) -> bool:
    """Whether a server accepts calls; `wait_for_termination` would wait for old calls, too."""
    return bool(server._server.is_running())
