"""Server-held streams: steps that happen exactly once, forks, rewinds and their end."""

import asyncio
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from sruserve.server.auth import Tenant
from sruserve.server.ending import STORE_SECONDS
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.job import Snapshot, StateOutput
from sruserve.server.errors import (
    InputTooLong,
    NoCheckpoint,
    ServeError,
    StateRefused,
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

MOST_FORKS = 256
_FORKS_AT_A_TIME = 4  # requests of a tenant


class Streams:
    """All server-held streams, as every protocol sees them.

    store: None: there are several workers and nothing that they share; all is refused.
    checkpoints: how many states of each stream are kept.
    idle_seconds: how long a stream lives without a step, unless less is asked for.
    reply_bytes: the longest reply of a step.
    waiting_bytes: of the objects of the requests that wait for their turn.
    tenants: how many there are.
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
    ) -> None:
        self._shared = store
        self._checkpoints = checkpoints
        self._idle_seconds = idle_seconds
        self._reply_bytes = reply_bytes
        self._turns = LeaseManager(waiting_bytes, tenants)
        self._forking: WeakValueDictionary[bytes, asyncio.Semaphore] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Begin to serve."""
        if self._shared is not None:
            await self._shared.start()

    async def stop(self) -> None:
        """Let steps that the engines have ended be stored, then let the store go."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STORE_SECONDS)
        if self._shared is not None:
            await self._shared.stop()

    def end(self, engine: Engine) -> None:
        """An engine has ended: streams in its states do not hold its memory."""
        if self._shared is not None:
            self._begin_alone(self._shared.end(engine))

    async def create(
        self,
        served: ServedModel,
        start: Snapshot | None,
        stream_id: str | None = None,
        idle_seconds: int | None = None,
    ) -> StreamRecord:
        """Hold a new stream that goes on from `start`, or begins.

        stream_id: None makes an id that nobody can guess; `StreamExists` if a given one lives.
        """
        served.check_streams("state")
        idle = min(idle_seconds or self._idle_seconds, self._idle_seconds)
        held = StreamRecord(
            id=stream_id or _new_id(),
            tenant=served.tenant,
            model=served.name,
            seed=new_seed(),
            idle_seconds=idle,
            created=int(time.time()),
        )
        with served.in_flight:
            async with self._turns.alone(held.tenant, held.id):
                try:
                    return await self._store.add(served, held, start)
                except asyncio.CancelledError:  # a store outside this process may have it already
                    self.forget_unused(held)
                    raise

    async def describe(self, tenant: Tenant, stream_id: str) -> StreamRecord:
        """What is known of a stream; it lives no longer for that."""
        return await self._store.read(tenant, stream_id)

    async def model(self, tenant: Tenant, stream_id: str) -> str:
        """The name of the model of a stream, which may have gone meanwhile."""
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
        """The reply to a step, which `work` makes at most once for a number.

        The same number with the same digest again gives the stored reply, another one
        `StepReused`, another number than the next one `WrongStep`; None takes the next one.
        Steps of one stream wait for each other. Once its turn has come it is not cancelled
        with its caller: the step counts whether anybody waits for it or not.

        digest: `digest_of` what tells one request from another.
        work: called with a view of the model that continues the stream; the state that its request
            ends in becomes the stream's together with the reply that it returns.
        last: the stream ends with this step; its reply stays until the stream expires, if its
            number can ask for it again.
        checkpoints: how many states of the stream are kept; None: as many as of each.
        begin: the step must be the stream's first, and goes on from the state that this returns:
            what the stream was created with may be another request's.
        counted: the time from the step's turn to its end; what it raises refuses the step.
        """
        with served.in_flight:
            turn = await self._turns.take(self._store, served.tenant, stream_id, step=number)
            most = checkpoints or self._checkpoints
            asked = _Step(number, digest, work, last, most, begin, counted)
            return await shielded(self._begin(self._answer(turn, served, asked)))

    async def fork(self, served: ServedModel, stream_id: str, n: int = 1) -> list[StreamRecord]:
        """`n` more streams in the state of this one; they go on from its number.

        Few requests of a tenant run at a time. If the caller leaves, those that are there already
        are forgotten again.
        """
        copies: list[StreamRecord] = []
        forking = self._begin(self._fork(served, stream_id, n, copies))
        try:
            await shielded(forking)
        except asyncio.CancelledError:
            forking.cancel()
            self._begin_alone(self._undo(forking, copies))
            raise
        finally:
            del forking  # its error would hold this frame
        return copies

    async def rewind(self, served: ServedModel, stream_id: str, step: int) -> StreamRecord:
        """The stream as it was after `step`; raises `NoCheckpoint`."""
        async with self._taken(served.tenant, stream_id, to_free=True) as held:
            if step not in _alive(held).checkpoints:
                known = ", ".join(map(str, held.checkpoints))
                raise NoCheckpoint(
                    f"the state after step {step} is not kept; the stream can go back to: {known}",
                    param="step",
                )
            return _still_taken(await self._store.rewind(served, held.rewound_to(step)))

    async def delete(self, tenant: Tenant, stream_id: str) -> StreamRecord:
        """Forget a stream, after the step that it is in, whether it can be read or not.

        Returns what it was; its model is empty if that cannot be read.
        """
        async with self._taken(tenant, stream_id, to_free=True, unread=True) as held:
            await self._store.delete(held)
            return held

    async def forget_lost(self, served: ServedModel, stream_id: str) -> bool:
        """Forget a stream that can never go on, as its state cannot be read any more.

        Returns whether its id is free now.
        """
        with served.in_flight, suppress(StreamUnknown, StreamExpired):
            taken = self._taken(served.tenant, stream_id, to_free=True, unread=True, use=False)
            async with taken as held:
                if held.ended or not await self._is_lost(served, held):
                    return held.ended
                await self._store.delete(held)
        return True

    def forget_unused(self, held: StreamRecord) -> asyncio.Task[None]:
        """Forget a new stream unless a step of it was done, whether anybody waits for it or not."""
        return self._begin_alone(self._forget_unused(held))

    async def token(
        self, served: ServedModel, stream_id: str, count: Count = lambda _: None
    ) -> tuple[int, str | None]:
        """The last step, and the state after it as a token; None: nothing was read yet.

        count: told the state before it is copied; what it raises refuses the token.
        """
        with served.in_flight:
            async with self._taken(served.tenant, stream_id, use=False) as held:
                state = await self._store.state(served, _alive(held))
                if state is None:
                    return held.step, None
                served.states.check_fit()
                count(state)
                own = await export_state(served, state)
                long = served.model.network.layout.nbytes > LONG_BYTES
                return held.step, await offload(long, served.seal_state, own)

    async def _fork(
        self, served: ServedModel, stream_id: str, n: int, made: list[StreamRecord]
    ) -> None:
        """All of them or none; whether their caller waits or not, it is one of few until then.

        made: what is there, from when it is.
        """
        few = self._forking.setdefault(served.tenant.id, asyncio.Semaphore(_FORKS_AT_A_TIME))
        with served.in_flight:
            async with self._taken(served.tenant, stream_id, place=few) as held:
                now = int(time.time())
                copies = [_alive(held).fork(_new_id(), now) for _ in range(n)]
                made += await self._store.fork(served, held, copies)

    async def _undo(self, forking: asyncio.Task[None], copies: list[StreamRecord]) -> None:
        """Forget forks whose caller has left when they were there already."""
        await asyncio.wait([forking])
        for copy in copies:
            await self._forget_unused(copy)

    async def _forget_unused(self, new: StreamRecord) -> None:
        with suppress(ServeError):  # it is not there, or expires
            async with self._taken(new.tenant, new.id, to_free=True, use=False) as held:
                if (held.step, held.seed) == (new.step, new.seed):  # else it is another stream
                    await self._store.delete(held)

    async def _is_lost(self, served: ServedModel, held: StreamRecord) -> bool:
        """Whether the state of a taken stream cannot be read."""
        if not held.model:
            return True
        try:
            await self._store.state(served, held)
        except StateRefused:
            return True
        return False

    async def _answer(self, turn: Lease, served: ServedModel, asked: "_Step") -> bytes:
        """One turn at a stream: the stored reply, or a step that is done and committed.

        If another replica takes the stream meanwhile, another turn tells whether it does this step.
        """
        with served.in_flight, ExitStack() as step:  # whether its caller is still there or not
            async with turn as held:
                step.enter_context(asked.counted())
                if _is_repeat(held, asked):
                    return await self._repeated(held)
                if _alive(held).model != served.name:
                    raise StreamUnknown(
                        f"this stream belongs to {held.model}, not to {served.name}"
                    )
                reply = await self._compute(served, held, asked)
            if reply is not None:
                return reply
            async with await self._turns.take(self._store, served.tenant, held.id) as held:
                if _is_repeat(held, asked):
                    return await self._repeated(held)
            raise lease_lost()

    async def _repeated(self, held: StreamRecord) -> bytes:
        reply = await self._store.reply(held)
        stream_metrics(held.model).repeated()
        return reply

    async def _compute(
        self, served: ServedModel, held: StreamRecord, asked: "_Step"
    ) -> bytes | None:
        """The reply to the next step of a taken stream, which it has made true.

        None: it has not, because another replica has taken the stream.
        """
        idle_seconds = max(0.0, time.time() - (held.expires_at - held.idle_seconds))
        keep = StateOutput.NONE if asked.last else self._store.state_output
        most = asked.checkpoints
        if not asked.last:  # whose end needs no room
            most = self._store.make_room(served, held, most)
        start = await (asked.begin() if asked.begin else self._store.state(served, held))
        with StreamView(served, start, keep, seed=held.seed) as view:
            reply = await asked.work(view)
            if len(reply) > self._reply_bytes:
                raise InputTooLong(
                    f"the reply has {len(reply)} bytes, and a stream stores at most "
                    f"{self._reply_bytes} (SRUSERVE_MAX_BODY_BYTES): request less in one step"
                )
            end = None if asked.last else view.end
            if asked.last and asked.number is None:
                await self._store.delete(held)
            else:
                after = held.after(asked.digest, reply, most, ended=asked.last)
                if await self._store.commit(served, after, end) is None:
                    return None
        stream_metrics(held.model).computed(idle_seconds)
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
        turn = await self._turns.take(
            self._store, tenant, stream_id, to_free=to_free, unread=unread, use=use, place=place
        )
        async with turn as held:
            yield held

    @property
    def _store(self) -> StreamStore:
        if self._shared is None:
            raise StreamsNeedRedis
        return self._shared

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do what goes on whether somebody waits for it or not."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _begin_alone(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do what nobody waits for, or only for its end."""
        task = self._begin(work)
        task.add_done_callback(forget_error)
        return task


async def digest_of(content: bytes, caller: Waiter) -> bytes:
    """What a step keeps of its content. caller: who may leave before it is made."""
    size = len(content)
    return await offload(size > LONG_BYTES, _digest, content, cost=size, caller=caller)


def _digest(content: bytes) -> bytes:
    return sha256(content).digest()


@dataclass(frozen=True, slots=True)
class _Step:
    """What `Streams.step` is asked."""

    number: int | None
    digest: bytes
    work: Work
    last: bool
    checkpoints: int
    begin: Begin | None
    counted: Counted


def _new_id() -> str:
    """An id that nobody can guess, for URLs."""
    return urlsafe_b64encode(random_bytes()).rstrip(b"=").decode()


def _alive(held: StreamRecord) -> StreamRecord:
    if held.ended:
        raise StreamUnknown("the stream has ended; create another one")
    return held


def _still_taken(held: StreamRecord | None) -> StreamRecord:
    if held is None:
        raise lease_lost()
    return held


def _is_repeat(held: StreamRecord, asked: _Step) -> bool:
    """Whether a step was done already; raises `StepReused` or `WrongStep` if it cannot be done."""
    number, expected = asked.number, held.step + 1
    if number is None and asked.begin is not None and expected != 1:
        raise WrongStep(1, expected)
    if number is None or number == expected:
        return False
    if number != held.step or not held.content:
        raise WrongStep(number, expected)
    if asked.digest != held.content:
        raise StepReused(
            f"step {number} was done with other content: repeat it with exactly the same "
            f"content, or send the next step, {expected}",
            param="step",
        )
    return True
