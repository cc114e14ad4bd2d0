"""One remote procedure call."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import grpc
from pydantic import BaseModel

from sruserve.server.auth import Tenant, Tenants
from sruserve.server.errors import ServeError
from sruserve.server.http.error_mapping import headers_of
from sruserve.server.kserve.errors import Problem, explain
from sruserve.server.metrics.metrics import UNKNOWN_MODEL
from sruserve.server.observation.observation import Description
from sruserve.server.observation.traceparent import read_traceparent
from sruserve.server.tasks.caller import Caller, ClientDisconnected
from sruserve.server.tasks.endpoint import Endpoint

_CODES = {"INVALID_ARG": "INVALID_ARGUMENT", "UNSUPPORTED": "UNIMPLEMENTED"}  # others: the same
_MAX_DETAILS = 1000  # characters of a message: it travels in a header

Work = Callable[["GrpcCall", Tenant], Awaitable[Any]]


class Metadata(NamedTuple):
    """The metadata of a call that is read; `traceparent` only if there is exactly one."""

    authorization: str | None = None
    traceparent: str | None = None


class GrpcCall(Caller):
    """A call. Its client has left if it is cancelled or its deadline has passed.

    metadata: all of it that is read.
    id: the client's id of the request. reply: the reply message. problem: the error, if any.
    """

    def __init__(self, metadata: Metadata, work: Work) -> None:
        super().__init__(metadata.authorization)
        self._metadata, self.work = metadata, work
        self.id = ""
        self.reply: Any = None
        self.problem: ServeError | None = None

    def describe(self) -> Description:
        status = "CANCELLED" if self.reply is None else "OK"
        if self.problem is not None:
            status = _code(explain(self.problem))
        parent = read_traceparent(self._metadata.traceparent)
        return Description("grpc", self.number, status=status, parent=parent)

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

    async def ask(self, metadata: Metadata, work: Work) -> GrpcCall:
        """Run the work of a call; raises `CancelledError` if its client has left."""
        rpc = GrpcCall(metadata, work)
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


def read_metadata(context: Any) -> Metadata:
    """The metadata of a call. Call it once, because it decodes all of it."""
    values: dict[str, list[Any]] = {name: [] for name in Metadata._fields}
    for name, value in context.invocation_metadata() or ():
        if name in values:
            values[name].append(value)
    keys, parents = values["authorization"], values["traceparent"]
    return Metadata(str(keys[0]) if keys else None, str(parents[0]) if len(parents) == 1 else None)


def _status(context: Any, problem: ServeError) -> tuple[grpc.StatusCode, str]:
    """The code and the text of an error, whose headers become trailing metadata."""
    reply = explain(problem)
    context.set_trailing_metadata(tuple(headers_of(problem).items()))
    return grpc.StatusCode[_code(reply)], reply.message[:_MAX_DETAILS]


def _code(reply: Problem) -> str:
    return _CODES.get(reply.code, reply.code)
