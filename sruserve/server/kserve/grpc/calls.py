"""Limit the concurrent gRPC calls of clients: a connection may have any number of calls."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from sruserve.server.auth import Tenant
from sruserve.server.budget import Hold
from sruserve.server.errors import Overloaded, ServeError, TooManyAtOnce
from sruserve.server.http.errors import ClientCertificateRequired
from sruserve.server.kserve.grpc.call import GrpcCall, GrpcEndpoint, Metadata, end, read_metadata
from sruserve.server.kserve.grpc.reading import Reads, TimedRead
from sruserve.server.kserve.grpc.shares import Caller, CallShares, SharedHold, caller_of
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.settings import Settings
from sruserve.server.tls.strength import is_weak

# Of a short body: SRUSERVE_MAX_QUEUE_BYTES divided by it is the limit of calls.
_SHORT_BYTES = 64 << 10
_MIN_READS = 4
_QUICK_SECONDS = 0.25  # nearly all messages arrive within this time
_MAX_SECONDS = 30.0  # for a message, whose received bytes are not visible

Answer = Callable[[bytes, GrpcCall, Tenant], Awaitable[Any]]
StreamAnswer = Callable[[bytes, Metadata, Callable[[Any], object]], Awaitable[Any]]
Behaviour = Callable[[Any, Any], Awaitable[Any]]


class ConcurrentCallLimit:
    """Limits the calls of each tenant, so that each leaves room for the others.

    Without API keys, a connection counts as a tenant, and the connections of one address have three
    quarters together. A call is authenticated before it counts, and counts before its message is
    read.
    """

    def __init__(self, settings: Settings, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._queue_bytes = settings.max_queue_bytes
        self._has_client_certificates = settings.tls_client_ca is not None
        self._idle_seconds = float(settings.keep_alive_seconds)
        self._open = self._shared(1, _too_many)
        self._streams = self._shared(settings.grpc_streams, _too_many_streams)
        self._unsent = self._shared(settings.max_queue_bytes, _too_many_unsent)
        reads = max(_MIN_READS, settings.max_queue_bytes // settings.max_body_bytes)
        seconds = settings.max_body_bytes / settings.receive_bytes_per_second
        self._seconds = settings.receive_grace_seconds + min(seconds, _MAX_SECONDS)
        slow = self._shared(reads, _too_many_slow)
        self._reads = Reads(reads, _QUICK_SECONDS, slow, self._seconds)

    def unary(self, endpoint: GrpcEndpoint, answer: Answer) -> Behaviour:
        """The behaviour of a method with one request: `answer` gets its bytes.

        gRPC treats it as a method with a stream of requests, so that it begins before they arrive.
        """

        async def behave(requests: Any, context: Any) -> Any:
            del requests  # else an unfinished iterator would keep the message in a cycle

            async def work(rpc: GrpcCall, tenant: Tenant) -> Any:
                self._check_certificate(context)
                caller = caller_of(tenant, context)
                hold_until_ended(self._hold_place(caller))
                reply = await answer(await self._reads.read(context, caller), rpc, tenant)
                hold_until_ended(self._unsent.hold(reply.ByteSize(), caller))
                return reply

            rpc = await endpoint.ask(read_metadata(context), work)
            if rpc.problem is not None:
                await end(context, rpc.problem)
            return rpc.reply

        return behave

    def stream(self, endpoint: GrpcEndpoint, answer: StreamAnswer) -> Behaviour:
        """The behaviour of a method that answers each request of a stream.

        answer: gets a request, the call's metadata, and a function that counts a reply until it is
            sent.
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
        """Answer a stream to its end. Returns an error that ends it, which counts as a request."""
        metadata = read_metadata(context)
        try:
            tenant = self._lifecycle.tenants.authenticate(metadata.authorization)
            self._check_certificate(context)
            caller = caller_of(tenant, context)
            with self._streams.hold(1, caller):
                await self._answer(answer, context, metadata, caller)
        except ServeError as problem:
            refusal = problem

            async def refuse(rpc: GrpcCall, tenant: Tenant) -> None:
                del rpc, tenant
                raise refusal

            return (await endpoint.ask(metadata, refuse)).problem
        return None

    async def _answer(
        self, answer: StreamAnswer, context: Any, metadata: Metadata, caller: Caller
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

                def count_reply(reply: Any, sent: ExitStack = sent) -> None:
                    sent.enter_context(self._unsent.hold(reply.ByteSize(), caller))

                await context.write(await answer(data, metadata, count_reply))
            del data  # it does not count while the next message is awaited
            seconds = self._idle_seconds

    def _check_certificate(self, context: Any) -> None:
        """Refuse a client's weak certificate, which gRPC's core accepts and HTTPS does not."""
        if self._has_client_certificates and any(
            map(is_weak, context.auth_context().get("x509_pem_cert", ()))
        ):
            raise ClientCertificateRequired(
                "the client's certificate is too weak: use a key of RSA with 2,048 bits or of an "
                "elliptic curve with 224, and no signature by MD5 or SHA-1"
            )

    def _hold_place(self, caller: Caller) -> SharedHold:
        """A place for a call. An owner has one for each short body that fits into the queues."""
        models, owners = len(self._lifecycle.catalogue), max(2, self._lifecycle.tenants.count)
        share = max(1, self._queue_bytes * models // _SHORT_BYTES)
        self._open.set_limit(share * owners, share)
        return self._open.hold(1, caller)

    def _shared(self, limit: int, refuse: Callable[[], ServeError]) -> CallShares:
        return CallShares(limit, refuse, self._lifecycle.tenants.count)


def hold_until_ended(hold: Hold | SharedHold) -> None:
    """Release a hold when the call of this task ends, after the client has read its reply."""
    task = asyncio.current_task()
    assert task is not None
    task.add_done_callback(lambda _: hold.release())


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


def _too_many_unsent() -> TooManyAtOnce:
    return TooManyAtOnce(
        "too many replies wait for this client (limit: SRUSERVE_MAX_QUEUE_BYTES); read them, then "
        "retry"
    )
