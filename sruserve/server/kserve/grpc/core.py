"""grpc.aio's server, which any path of a call leaves running, and any metadata silent.

grpcio's accept loop decodes the path of a call to a method that is not registered, outside of all
error handling: a path that is not UTF-8 ends the loop, and the server with it. So all methods are
registered, which gRPC's core matches byte by byte, and the others' calls end before that loop.

It logs each value of metadata that is not UTF-8, maybe a key, before anybody has asked for it, with
its traceback: a call with as many as go into its headers would take tens of milliseconds.
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
_SAID_OF_METADATA = "Invalid encoding on %s"


class _RegisteredOnly(cygrpc.AioServer):  # type: ignore[misc]
    """Accepts calls of registered methods; the others end as UNIMPLEMENTED."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._refusals: set[asyncio.Task[None]] = set()

    async def _request_call(self) -> None:
        """Where grpcio waits for the next call of a method that is not registered: for ever."""
        while True:
            state = await super()._request_call()
            context = cygrpc._ServicerContext(state, None, None, asyncio.get_running_loop())
            refusal = asyncio.create_task(end(context, Unsupported("Method not found!")))
            self._refusals.add(refusal)
            refusal.add_done_callback(self._refusals.discard)


class _Log(logging.Logger):
    """grpcio's own, which says nothing of metadata; a filter would be asked after most is done."""

    def exception(self, msg: object, *given: Any, **more: Any) -> None:
        if msg != _SAID_OF_METADATA:
            super().exception(msg, *given, **more)


logging.getLogger(cygrpc.__name__).__class__ = _Log


def new_server(options: Sequence[tuple[str, int]]) -> grpc.aio.Server:
    """A server of methods that are added by `add_registered_method_handlers`."""
    cygrpc.AioServer = _RegisteredOnly  # what its constructor makes
    try:
        return grpc.aio.server(options=options)
    finally:
        cygrpc.AioServer = _Core


def is_running(server: grpc.aio.Server) -> bool:
    """Whether it was started and takes calls; `wait_for_termination` waits for old calls, too."""
    return bool(server._server.is_running())
