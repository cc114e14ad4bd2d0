"""How many calls clients may hold open at once over gRPC, where one connection has any number."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import grpc

from sruserve.server.api.kserve.grpc_call import Rpc, RpcEndpoint, abort
from sruserve.server.errors import MalformedBody, Overloaded
from sruserve.server.tenants import Tenant


class OpenCalls:
    """The calls that are open, whether they have said what they ask for or not.

    most: how many there may be now.
    """

    def __init__(self, endpoint: RpcEndpoint, most: Callable[[], int]) -> None:
        self._endpoint, self._most = endpoint, most
        self._count = 0

    @asynccontextmanager
    async def one_more(self, context: Any) -> AsyncIterator[None]:
        """While the block runs, a call is open; it ends as refused if there are too many."""
        if self._count >= self._most():
            refused = await self._endpoint.ask(context, _refuse)
            assert refused.problem is not None
            await abort(context, refused.problem)
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1

    def unary(
        self, answer: Callable[[bytes, Any], Awaitable[Any]]
    ) -> Callable[[Any, Any], Awaitable[Any]]:
        """The behaviour of a method with one request: `answer` gets its bytes.

        It is given to gRPC as one with a stream of them, so that it begins before they have come.
        """

        async def behave(requests: AsyncIterator[bytes], context: Any) -> Any:
            del requests  # left before its end, it would hold the message in a cycle
            async with self.one_more(context):
                data = await context.read()
                if data is grpc.aio.EOF:
                    return await abort(context, MalformedBody("the call has no message"))
                return await answer(data, context)

        return behave


async def _refuse(rpc: Rpc, tenant: Tenant) -> NoReturn:
    del rpc, tenant
    raise Overloaded("there are as many calls open as SRUSERVE_MAX_QUEUE_BYTES allows; retry")
