"""One remote procedure call."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from pydantic import BaseModel

from sruserve.server.auth import Tenant, Tenants
from sruserve.server.errors import ServeError
from sruserve.server.kserve.errors import explain
from sruserve.server.metrics.metrics import UNKNOWN_MODEL
from sruserve.server.tasks.caller import Caller, ClientDisconnected
from sruserve.server.tasks.endpoint import Endpoint

_CODES = {"INVALID_ARG": "INVALID_ARGUMENT", "UNSUPPORTED": "UNIMPLEMENTED"}  # others: the same
_MAX_DETAILS = 1000  # characters of a message: it travels in a header

Work = Callable[["GrpcCall", Tenant], Awaitable[Any]]


class GrpcCall(Caller):
    """A call. Its client has left if it is cancelled or its deadline has passed.

    key: the `authorization` metadata, the only one that is read.
    id: the client's id of the request. reply: the reply message. problem: the error, if any.
    """

    def __init__(self, key: str | None, work: Work) -> None:
        super().__init__()
        self._key, self.work = key, work
        self.id = ""
        self.reply: Any = None
        self.problem: ServeError | None = None

    @property
    def authorization(self) -> str | None:
        return self._key

    async def wait(self, done: asyncio.Future[None]) -> None:
        await done  # cancelling the call cancels this task, and `done` with it


class GrpcEndpoint(Endpoint[GrpcCall]):
    """Authenticates and counts the calls of one kind.

    method: their name in metrics.
    """

    schema = BaseModel

    def __init__(self, method: str, tenants: Tenants) -> None:
        self.path = method
        super().__init__(tenants, (UNKNOWN_MODEL,))

    async def ask(self, key: str | None, work: Work) -> GrpcCall:
        """Run the work of a call; raises `CancelledError` if its client has left."""
        rpc = GrpcCall(key, work)
        await self(rpc)
        if rpc.reply is None and rpc.problem is None:
            raise asyncio.CancelledError
        return rpc

    async def serve(self, call: GrpcCall, tenant: Tenant) -> None:
        try:
            call.reply = await call.work(call, tenant)
        except asyncio.CancelledError:
            raise ClientDisconnected from None

    async def refuse(self, call: GrpcCall, problem: ServeError) -> None:
        call.problem = problem


async def end(context: Any, problem: ServeError) -> None:
    """End a call with an error. Its handler's pending read and its return value are ignored then.

    No message is sent, because a client that does not read could block the call. The call keeps
    the error that `abort` raises with its frames, so `abort` runs in its own task.
    """
    if context.done():
        return
    ending = asyncio.ensure_future(context.abort(*_status(context, problem)))
    ending.add_done_callback(lambda _: ending.cancelled() or ending.exception())
    await asyncio.wait((ending,))


def authorization(context: Any) -> str | None:
    """A call's `authorization` metadata. Call it once, because it decodes all metadata."""
    metadata = context.invocation_metadata() or ()
    return next((str(value) for name, value in metadata if name == "authorization"), None)


def _status(context: Any, problem: ServeError) -> tuple[grpc.StatusCode, str]:
    """The code and the text of an error, whose headers become trailing metadata."""
    reply = explain(problem)
    context.set_trailing_metadata(tuple(problem.headers.items()))
    return grpc.StatusCode[_CODES.get(reply.code, reply.code)], reply.message[:_MAX_DETAILS]
