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
_MOST_DETAILS = 1000  # characters of a message: it travels in a header

Work = Callable[["GrpcCall", Tenant], Awaitable[Any]]


class GrpcCall(Caller):
    """A call, whose client is gone when it is cancelled or its deadline has passed.

    key: what `authorization` tells, the only metadata that is looked at.
    id: its client's name for it. reply: the message that answers it. problem: or why there is none.
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
        await done  # the task that waits is cancelled with the call, and `done` with it


class GrpcEndpoint(Endpoint[GrpcCall]):
    """Counts the calls of one kind, and lets in who may.

    method: what they are called in metrics.
    """

    schema = BaseModel

    def __init__(self, method: str, tenants: Tenants) -> None:
        self.path = method
        super().__init__(tenants, (UNKNOWN_MODEL,))

    async def ask(self, key: str | None, work: Work) -> GrpcCall:
        """Do the work of a call, or find out why it cannot be done; raises if nobody waits."""
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
    """End a call with an error; what its handler waits for or returns comes to nothing then.

    No message is sent: a client that takes none could hold the call. The call keeps what `abort`
    raises, with all frames that it goes through, so a task of its own takes it.
    """
    if context.done():
        return
    ending = asyncio.ensure_future(context.abort(*_status(context, problem)))
    ending.add_done_callback(lambda _: ending.cancelled() or ending.exception())
    await asyncio.wait((ending,))


def authorization(context: Any) -> str | None:
    """What a call's metadata has of that name; to be asked once, for it decodes all of it."""
    metadata = context.invocation_metadata() or ()
    return next((str(value) for name, value in metadata if name == "authorization"), None)


def _status(context: Any, problem: ServeError) -> tuple[grpc.StatusCode, str]:
    """The code and the text of an error, whose headers go behind them."""
    told = explain(problem)
    context.set_trailing_metadata(tuple(problem.headers.items()))
    return grpc.StatusCode[_CODES.get(told.code, told.code)], told.message[:_MOST_DETAILS]
