"""What the calls of clients may hold over gRPC, where one connection has any number of calls."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import ExitStack
from typing import Any

from sruserve.server.auth import Tenant
from sruserve.server.budget import Budget, Hold
from sruserve.server.errors import Overloaded, ServeError, TooManyAtOnce
from sruserve.server.kserve.grpc.call import GrpcCall, GrpcEndpoint, authorization, end
from sruserve.server.kserve.grpc.reading import Reads, TimedRead
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.settings import Settings

_SHORT_BYTES = 64 << 10  # of a short body: the queue's bytes allow so many calls
_FEWEST_READS = 4
_QUICK_SECONDS = 0.25  # nearly every message is there by then, however long it is
_MOST_SECONDS = 30.0  # for the bytes of a message: nobody sees how many of them have come

Answer = Callable[[bytes, GrpcCall, Tenant], Awaitable[Any]]
StreamAnswer = Callable[[bytes, str | None, Callable[[Any], object]], Awaitable[Any]]
Behaviour = Callable[[Any, Any], Awaitable[Any]]


class ConcurrentCallLimit:
    """The calls of tenants, each of whom leaves room for the others.

    Without API keys a connection stands for a tenant. An API key is checked before a call counts,
    and a call counts before anything of it is read.
    """

    def __init__(self, settings: Settings, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._queue_bytes = settings.max_queue_bytes
        self._idle_seconds = float(settings.keep_alive_seconds)
        self._open = Budget(0, _too_many)
        self._streams = self._shared(settings.grpc_streams, _too_many_streams)
        self._unsent = self._shared(settings.max_queue_bytes, _too_much_unsent)
        reads = max(_FEWEST_READS, settings.max_queue_bytes // settings.max_body_bytes)
        seconds = settings.max_body_bytes / settings.receive_bytes_per_second
        self._seconds = settings.receive_grace_seconds + min(seconds, _MOST_SECONDS)
        slow = self._shared(reads, _too_many_slow)
        self._reads = Reads(reads, _QUICK_SECONDS, slow, self._seconds)

    def unary(self, endpoint: GrpcEndpoint, answer: Answer) -> Behaviour:
        """The behaviour of a method with one request: `answer` gets its bytes.

        It is given to gRPC as one with a stream of them, so that it begins before they have come.
        """

        async def behave(requests: Any, context: Any) -> Any:
            del requests  # left before its end, it would hold the message in a cycle

            async def work(rpc: GrpcCall, tenant: Tenant) -> Any:
                owner = _owner(tenant, context)
                until_ended(self._one_more(owner))
                reply = await answer(await self._reads.read(context, owner), rpc, tenant)
                until_ended(self._unsent.hold(reply.ByteSize(), owner))
                return reply

            rpc = await endpoint.ask(authorization(context), work)
            if rpc.problem is not None:
                await end(context, rpc.problem)
            return rpc.reply

        return behave

    def stream(self, endpoint: GrpcEndpoint, answer: StreamAnswer) -> Behaviour:
        """The behaviour of a method whose requests are answered one by one.

        answer: gets a request, the call's key, and what counts a reply until it is sent.
        """

        async def behave(requests: Any, context: Any) -> None:
            del requests
            problem = await self._serve(endpoint, answer, context)
            if problem is not None:
                await end(context, problem)

        return behave

    async def _serve(
        self, endpoint: GrpcEndpoint, answer: StreamAnswer, context: Any
    ) -> ServeError | None:
        """Answer a stream to its end; returns why it ended before, which counts as one request."""
        key = authorization(context)
        try:
            owner = _owner(self._lifecycle.tenants.authenticate(key), context)
            with self._streams.hold(1, owner):
                await self._answer(answer, context, key, owner)
        except ServeError as problem:
            told = problem

            async def refuse(rpc: GrpcCall, tenant: Tenant) -> None:
                del rpc, tenant
                raise told

            return (await endpoint.ask(key, refuse)).problem
        return None

    async def _answer(
        self, answer: StreamAnswer, context: Any, key: str | None, owner: Hashable
    ) -> None:
        seconds = self._seconds
        while True:
            read = TimedRead(context, seconds)
            try:
                data = await read.message()
            finally:
                read.close()
            if data is None:
                return
            with ExitStack() as sent:

                def keep(reply: Any, sent: ExitStack = sent) -> None:
                    sent.enter_context(self._unsent.hold(reply.ByteSize(), owner))

                await context.write(await answer(data, key, keep))
            del data  # nothing counts it while the next message is awaited
            seconds = self._idle_seconds

    def _one_more(self, owner: Hashable) -> Hold:
        """A place for a call: an owner has one for every short body that the queues may hold."""
        models, owners = len(self._lifecycle.catalogue), max(2, self._lifecycle.tenants.count)
        self._open.share = max(1, self._queue_bytes * models // _SHORT_BYTES)
        self._open.limit = self._open.share * owners
        return self._open.hold(1, owner)

    def _shared(self, limit: int, refuse: Callable[[], ServeError]) -> Budget:
        """A budget of which one owner leaves half to others, if there can be others."""
        alone = self._lifecycle.tenants.count == 1
        return Budget(limit, refuse, limit if alone else max(1, limit // 2))


def until_ended(hold: Hold) -> None:
    """Hold on until the call of this task has ended, its reply taken by the client."""
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(lambda _: hold.release())


def _owner(tenant: Tenant, context: Any) -> Hashable:
    """Whose places a call takes."""
    return tenant.owner or context.peer()


def _too_many() -> Overloaded:
    return Overloaded(
        "too many concurrent gRPC calls (limit: SRUSERVE_MAX_QUEUE_BYTES); retry later"
    )


def _too_many_slow() -> TooManyAtOnce:
    return TooManyAtOnce(
        "too many messages arrive slowly at the same time; send a call's message with the call"
    )


def _too_many_streams() -> TooManyAtOnce:
    return TooManyAtOnce(
        "too many ModelStreamInfer calls are open (limit: SRUSERVE_GRPC_STREAMS); end some, or use "
        "one for several sequences"
    )


def _too_much_unsent() -> TooManyAtOnce:
    return TooManyAtOnce(
        "too many replies wait for this client (limit: SRUSERVE_MAX_QUEUE_BYTES); read them, then "
        "retry"
    )
