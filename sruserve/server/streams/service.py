"""Server-held streams: steps that run exactly once, forks, rewinds and deletion."""

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from sruserve.server.auth import Tenant
from sruserve.server.clocks import SYSTEM_CLOCKS
from sruserve.server.ending import STORE_SECONDS
from sruserve.server.engine.job_engine import JobEngine
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.errors import (
    InputTooLong,
    NoCheckpoint,
    ServeError,
    StateRefused,
    StateWrongModel,
    StepReused,
    StreamExpired,
    StreamsNeedRedis,
    StreamUnknown,
    WrongStep,
)
from sruserve.server.metrics.metrics import stream_metrics
from sruserve.server.offload import LONG_BYTES, Waiter, offload
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.seeds import new_seed, random_bytes
from sruserve.server.streams.lease import Lease, LeaseManager
from sruserve.server.streams.portable import export_state
from sruserve.server.streams.step_view import StreamView
from sruserve.server.streams.store import StreamRecord, StreamStore, lease_lost
from sruserve.server.unheard import forget_error, shielded

T = TypeVar("T")
Work = Callable[[StreamView], Awaitable[bytes]]
Begin = Callable[[], Awaitable[Snapshot | None]]
Counted = Callable[[], AbstractContextManager[object]]
Count = Callable[[Snapshot], object]

MAX_FORKS = 256
_CONCURRENT_FORKS = 4  # requests of a tenant


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
        self._reply_bytes = reply_bytes
        self._leases = LeaseManager(waiting_bytes, tenants)
        self._forking: WeakValueDictionary[bytes, asyncio.Semaphore] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Start the store."""
        if self._store_or_none is not None:
            await self._store_or_none.start()

    async def stop(self) -> None:
        """Store the steps that the engines have finished, then stop the store."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STORE_SECONDS)
        if self._store_or_none is not None:
            await self._store_or_none.stop()

    def end(self, engine: JobEngine) -> None:
        """Drop the streams' references to an engine that has ended."""
        if self._store_or_none is not None:
            self._start_unawaited(self._store_or_none.end(engine))

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
            id=stream_id or _new_id(),
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
            lease = await self._leases.take(self._store, served.tenant, stream_id, step=number)
            limit = checkpoints or self._checkpoints
            step = _Step(number, digest, work, last, limit, begin, counted)
            return await shielded(self._start(self._answer(lease, served, step)))

    async def fork(self, served: ServedModel, stream_id: str, n: int = 1) -> list[StreamRecord]:
        """Create `n` streams with the state and the step number of this one.

        The number of concurrent forks of a tenant is limited. If the caller leaves, the forks that
        exist already are deleted.
        """
        copies: list[StreamRecord] = []
        forking = self._start(self._fork(served, stream_id, n, copies))
        try:
            await shielded(forking)
        except asyncio.CancelledError:
            forking.cancel()
            self._start_unawaited(self._undo(forking, copies))
            raise
        finally:
            del forking  # its error would hold this frame
        return copies

    async def rewind(self, served: ServedModel, stream_id: str, step: int) -> StreamRecord:
        """The stream as it was after `step`; raises `NoCheckpoint`."""
        async with self._taken(served.tenant, stream_id, to_free=True) as record:
            if step not in _alive(record).checkpoints:
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
        return self._start_unawaited(self._forget_unused(record))

    async def token(
        self, served: ServedModel, stream_id: str, count: Count = lambda _: None
    ) -> tuple[int, str | None]:
        """The number of the last step, and its state as a token; None: no input was read yet.

        count: called with the state before it is copied; an error that it raises refuses the token.
        """
        with served.in_flight:
            async with self._taken(served.tenant, stream_id, use=False) as record:
                state = await self._store.state(served, _alive(record))
                if state is None:
                    return record.step, None
                served.states.check_fit()
                count(state)
                own = await export_state(served, state)
                long = served.model.network.layout.nbytes > LONG_BYTES
                return record.step, await offload(long, served.seal_state, own)

    async def _fork(
        self, served: ServedModel, stream_id: str, n: int, made: list[StreamRecord]
    ) -> None:
        """Create all forks or none. They count as concurrent forks even if their caller leaves.

        made: receives the forks once they exist.
        """
        place = self._forking.setdefault(served.tenant.id, asyncio.Semaphore(_CONCURRENT_FORKS))
        with served.in_flight:
            async with self._taken(served.tenant, stream_id, place=place) as record:
                now = int(self._epoch())
                copies = [_alive(record).fork(_new_id(), now) for _ in range(n)]
                made += await self._store.fork(served, record, copies)

    async def _undo(self, forking: asyncio.Task[None], copies: list[StreamRecord]) -> None:
        """Delete the forks of a caller that has left."""
        await asyncio.wait([forking])
        for copy in copies:
            await self._forget_unused(copy)

    async def _forget_unused(self, new: StreamRecord) -> None:
        with suppress(ServeError):  # it does not exist, or expires
            async with self._taken(new.tenant, new.id, to_free=True, use=False) as record:
                if (record.step, record.seed) == (new.step, new.seed):  # else it is another stream
                    await self._store.delete(record)

    async def _is_lost(self, served: ServedModel, record: StreamRecord) -> bool:
        """Whether the state of a taken stream is unreadable."""
        if not record.model:
            return True
        try:
            await self._store.state(served, record)
        except StateRefused:
            return True
        return False

    async def _answer(self, lease: Lease, served: ServedModel, step: "_Step") -> bytes:
        """Return the stored reply, or compute and commit a step.

        If another replica takes the stream meanwhile, take it again to see whether that replica
        has committed this step.
        """
        with served.in_flight:  # to the step's end, even without its caller
            async with lease as record:
                with step.counted():
                    if _is_repeat(record, step):
                        return await self._repeated(record)
                    if _alive(record).model != served.name:
                        raise StreamUnknown(
                            f"this stream belongs to {record.model}, not to {served.name}: "
                            "send its steps to that model"
                        )
                    if record.weights and record.weights != served.states.weights:
                        raise _wrong_version(served)
                    reply = await self._compute(served, record, step)
            if reply is not None:
                return reply
            async with await self._leases.take(self._store, served.tenant, record.id) as record:
                if _is_repeat(record, step):
                    return await self._repeated(record)
            raise lease_lost()

    async def _repeated(self, record: StreamRecord) -> bytes:
        reply = await self._store.reply(record)
        stream_metrics(record.model).repeated()
        return reply

    async def _compute(
        self, served: ServedModel, record: StreamRecord, step: "_Step"
    ) -> bytes | None:
        """Compute and commit the next step of a taken stream, and return its reply.

        None: not committed, because another replica has taken the stream.
        """
        idle_seconds = max(0.0, self._epoch() - (record.expires_at - record.idle_seconds))
        state_output = StateOutput.NONE if step.last else self._store.state_output
        checkpoints = step.checkpoints
        if not step.last:  # an ended stream needs no room
            checkpoints = self._store.make_room(served, record, checkpoints)
        start = await (step.begin() if step.begin else self._store.state(served, record))
        with StreamView(served, start, state_output, seed=record.seed) as view:
            reply = await step.work(view)
            if len(reply) > self._reply_bytes:
                raise InputTooLong(
                    f"the reply has {len(reply)} bytes, and a stream stores at most "
                    f"{self._reply_bytes} (SRUSERVE_MAX_BODY_BYTES): request less in one step"
                )
            end = None if step.last else view.end
            if step.last and step.number is None:
                await self._store.delete(record)
            else:
                after = record.after(step.digest, reply, checkpoints, ended=step.last)
                if await self._store.commit(served, after, end) is None:
                    return None
        stream_metrics(record.model).computed(idle_seconds)
        return reply

    @asynccontextmanager
    async def _taken(
        self,
        tenant: Tenant,
        stream_id: str,
        *,
        to_free: bool = False,
        unread: bool = False,
        use: bool = True,
        place: asyncio.Semaphore | None = None,
    ) -> AsyncIterator[StreamRecord]:
        lease = await self._leases.take(
            self._store, tenant, stream_id, to_free=to_free, unread=unread, use=use, place=place
        )
        async with lease as record:
            yield record

    @property
    def _store(self) -> StreamStore:
        if self._store_or_none is None:
            raise StreamsNeedRedis
        return self._store_or_none

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task that runs to its end even if its caller leaves."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _start_unawaited(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task whose error nobody awaits."""
        task = self._start(work)
        task.add_done_callback(forget_error)
        return task


async def digest_of(content: bytes, caller: Waiter) -> bytes:
    """The digest of a step's content. caller: the request, whose client may leave meanwhile."""
    size = len(content)
    return await offload(size > LONG_BYTES, _digest, content, cost=size, caller=caller)


def _digest(content: bytes) -> bytes:
    return sha256(content).digest()


@dataclass(frozen=True, slots=True)
class _Step:
    """The arguments of `Streams.step`."""

    number: int | None
    digest: bytes
    work: Work
    last: bool
    checkpoints: int
    begin: Begin | None
    counted: Counted


def _new_id() -> str:
    """A random id for URLs."""
    return urlsafe_b64encode(random_bytes()).rstrip(b"=").decode()


def _alive(record: StreamRecord) -> StreamRecord:
    if record.ended:
        raise StreamUnknown("the stream has ended; create another one")
    return record


def _wrong_version(served: ServedModel) -> StateWrongModel:
    return StateWrongModel(
        f"the stream belongs to another version of {served.name} than {served.version}: if the "
        "request names a version, leave it out; otherwise that version is no longer served, so "
        "create another stream"
    )


def _still_taken(record: StreamRecord | None) -> StreamRecord:
    if record is None:
        raise lease_lost()
    return record


def _is_repeat(record: StreamRecord, step: _Step) -> bool:
    """Whether a step was computed already; raises `StepReused` or `WrongStep` if it cannot be."""
    number, expected = step.number, record.step + 1
    if number is None and step.begin is not None and expected != 1:
        raise WrongStep(1, expected)
    if number is None or number == expected:
        return False
    if number != record.step or not record.content:
        raise WrongStep(number, expected)
    if step.digest != record.content:
        raise StepReused(
            f"step {number} was computed with other content: repeat it with exactly the same "
            f"content, or send the next step, {expected}",
            param="step",
        )
    return True
