"""Server-held streams: steps that run exactly once, forks, rewinds and deletion."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress

from sruserve.server.auth import Tenant
from sruserve.server.clocks import SYSTEM_CLOCKS
from sruserve.server.ending import STORE_SECONDS
from sruserve.server.engine.job_engine import JobEngine
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import (
    NoCheckpoint,
    StateRefused,
    StreamExpired,
    StreamsNeedRedis,
    StreamUnknown,
)
from sruserve.server.offload import LONG_BYTES, offload
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.seeds import new_seed
from sruserve.server.streams.detached_tasks import DetachedTasks
from sruserve.server.streams.forks import Forks
from sruserve.server.streams.lease import LeaseManager
from sruserve.server.streams.portable import export_state
from sruserve.server.streams.record import StreamRecord, alive, new_id
from sruserve.server.streams.step import Begin, Counted, Step, Work
from sruserve.server.streams.step_runner import StepRunner
from sruserve.server.streams.store import StreamStore, lease_lost
from sruserve.server.streams.unused import delete_unused
from sruserve.server.unheard import shielded

Count = Callable[[Snapshot], object]


class Streams:
    """All server-held streams, for every protocol.

    store: None: several workers share no store, so all requests are refused.
    checkpoints: the number of states that each stream keeps.
    idle_seconds: the life of a stream without a step, unless a request sets less.
    reply_bytes: the longest reply of a step.
    waiting_bytes: of the objects of the requests that wait for their turn.
    tenants: their number.
    epoch: seconds since 1970, on the clock of the store.
    """

    def __init__(
        self,
        store: StreamStore | None,
        *,
        checkpoints: int,
        idle_seconds: int,
        reply_bytes: int,
        waiting_bytes: int,
        tenants: int,
        epoch: Callable[[], float] = SYSTEM_CLOCKS.epoch,
    ) -> None:
        self._epoch = epoch
        self._store_or_none = store
        self._checkpoints = checkpoints
        self._idle_seconds = idle_seconds
        self._leases = LeaseManager(waiting_bytes, tenants)
        self._runner = StepRunner(self._leases, reply_bytes, epoch)
        self._tasks = DetachedTasks()
        self._forks = Forks(self._leases, self._tasks, epoch)

    async def start(self) -> None:
        """Start the store."""
        if self._store_or_none is not None:
            await self._store_or_none.start()

    async def stop(self) -> None:
        """Store the steps that the engines have finished, then stop the store."""
        if self._tasks.running:
            await asyncio.wait(self._tasks.running, timeout=STORE_SECONDS)
        if self._store_or_none is not None:
            await self._store_or_none.stop()

    def end(self, engine: JobEngine) -> None:
        """Drop the streams' references to an engine that has ended."""
        if self._store_or_none is not None:
            self._tasks.start_unawaited(self._store_or_none.end(engine))

    async def create(
        self,
        served: ServedModel,
        start: Snapshot | None,
        stream_id: str | None = None,
        idle_seconds: int | None = None,
    ) -> StreamRecord:
        """Create a stream that continues the state `start`, or begins without one.

        stream_id: None: a random id. Raises `StreamExists` if a live stream has the id.
        """
        served.check_streams("state")
        idle = min(idle_seconds or self._idle_seconds, self._idle_seconds)
        record = StreamRecord(
            id=stream_id or new_id(),
            tenant=served.tenant,
            model=served.name,
            seed=new_seed(),
            idle_seconds=idle,
            created=int(self._epoch()),
            weights=served.states.weights,
        )
        with served.in_flight:
            async with self._leases.alone(record.tenant, record.id):
                try:
                    return await self._store.add(served, record, start)
                except asyncio.CancelledError:  # Redis may have stored it already
                    self.forget_unused(record)
                    raise

    async def describe(self, tenant: Tenant, stream_id: str) -> StreamRecord:
        """The record of a stream; reading it does not extend its life."""
        return await self._store.read(tenant, stream_id)

    async def model(self, tenant: Tenant, stream_id: str) -> tuple[str, str]:
        """The name of a stream's model, and its weights; the stream may no longer exist."""
        return await self._store.model(tenant, stream_id)

    async def step(
        self,
        served: ServedModel,
        stream_id: str,
        number: int | None,
        digest: bytes,
        work: Work,
        *,
        last: bool = False,
        checkpoints: int | None = None,
        begin: Begin | None = None,
        counted: Counted = nullcontext,
    ) -> bytes:
        """The reply to a step. `work` computes the step of a number at most once.

        Repeating a number with the same digest returns the stored reply, and with another digest
        raises `StepReused`. A number other than the next one raises `WrongStep`; None is the next
        one. Steps of one stream wait for each other. A step that has its turn is not cancelled
        with its caller: it is committed even if its client leaves.

        digest: `digest_of` the request's content.
        work: called with a view of the model that continues the stream. The end state of its
            request is stored together with the reply that it returns.
        last: the stream ends with this step. If the step has a number, its reply stays until the
            stream expires.
        checkpoints: the number of states to keep; None: the default.
        begin: returns the start state; the step must be the stream's first. The stream may have
            been created by another request, with another state.
        counted: entered from the step's turn to its end; an error that it raises refuses the step.
        """
        with served.in_flight:
            store = self._store
            lease = await self._leases.take(store, served.tenant, stream_id, step=number)
            limit = checkpoints or self._checkpoints
            step = Step(number, digest, work, last, limit, begin, counted)
            return await shielded(
                self._tasks.start(self._runner.answer(store, lease, served, step))
            )

    async def fork(self, served: ServedModel, stream_id: str, n: int = 1) -> list[StreamRecord]:
        """Create `n` streams with the state and the step number of this one.

        The number of concurrent forks of a tenant is limited. If the caller leaves, the forks that
        exist already are deleted.
        """
        return await self._forks.create(self._store, served, stream_id, n)

    async def rewind(self, served: ServedModel, stream_id: str, step: int) -> StreamRecord:
        """The stream as it was after `step`; raises `NoCheckpoint`."""
        async with self._taken(served.tenant, stream_id, to_free=True) as record:
            if step not in alive(record).checkpoints:
                checkpoints = ", ".join(map(str, record.checkpoints))
                raise NoCheckpoint(
                    f"the state after step {step} is not kept; rewind the stream to one of: "
                    f"{checkpoints}",
                    param="step",
                )
            return _still_taken(await self._store.rewind(served, record.rewound_to(step)))

    async def delete(self, tenant: Tenant, stream_id: str) -> StreamRecord:
        """Delete a stream after its running step, even if its record is unreadable.

        Returns its record, with an empty model if that is unreadable.
        """
        async with self._taken(tenant, stream_id, to_free=True, unread=True) as record:
            await self._store.delete(record)
            return record

    async def forget_lost(self, served: ServedModel, stream_id: str) -> bool:
        """Delete a stream whose state is unreadable, so that it can never continue.

        Returns whether its id is free now.
        """
        with served.in_flight, suppress(StreamUnknown, StreamExpired):
            taking = self._taken(served.tenant, stream_id, to_free=True, unread=True, use=False)
            async with taking as record:
                if record.ended or not await self._is_lost(served, record):
                    return record.ended
                await self._store.delete(record)
        return True

    def forget_unused(self, record: StreamRecord) -> asyncio.Task[None]:
        """Delete a new stream unless it had a step. The deletion runs even if its caller leaves."""
        return self._tasks.start_unawaited(delete_unused(self._store, self._leases, record))

    async def token(
        self, served: ServedModel, stream_id: str, count: Count = lambda _: None
    ) -> tuple[int, str | None]:
        """The number of the last step, and its state as a token; None: no input was read yet.

        count: called with the state before it is copied; an error that it raises refuses the token.
        """
        with served.in_flight:
            async with self._taken(served.tenant, stream_id, use=False) as record:
                state = await self._store.state(served, alive(record))
                if state is None:
                    return record.step, None
                served.states.check_fit()
                count(state)
                own = await export_state(served, state)
                long = served.model.network.layout.nbytes > LONG_BYTES
                return record.step, await offload(long, served.seal_state, own)

    async def _is_lost(self, served: ServedModel, record: StreamRecord) -> bool:
        """Whether the state of a taken stream is unreadable."""
        if not record.model:
            return True
        try:
            await self._store.state(served, record)
        except StateRefused:
            return True
        return False

    @asynccontextmanager
    async def _taken(
        self,
        tenant: Tenant,
        stream_id: str,
        *,
        to_free: bool = False,
        unread: bool = False,
        use: bool = True,
    ) -> AsyncIterator[StreamRecord]:
        lease = await self._leases.take(
            self._store, tenant, stream_id, to_free=to_free, unread=unread, use=use
        )
        async with lease as record:
            yield record

    @property
    def _store(self) -> StreamStore:
        if self._store_or_none is None:
            raise StreamsNeedRedis
        return self._store_or_none


def _still_taken(record: StreamRecord | None) -> StreamRecord:
    if record is None:
        raise lease_lost()
    return record
