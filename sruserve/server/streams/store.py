"""What is known of a server-held stream, and what a store of them does."""

from dataclasses import dataclass, replace
from typing import Protocol, Self

from sruserve.server.auth import Tenant
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.job import Snapshot, StateOutput
from sruserve.server.errors import StoreUnavailable, StreamExpired, StreamUnknown
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.streams.shared_state import SharedState

LEAST_LEFT_SECONDS = 1.0  # for one who waits for a stream, or sends what has failed again


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """A stream between two steps. Its states are with the store.

    seed: of its first sampling, so that a step that is done again gives the same text.
    created, expires_at: seconds since the epoch.
    step: number of its last step; 0: none was done.
    content, reply: the SHA-256 of what that step was asked, and its answer; empty after a rewind.
        The answer is there in a stream that is about to be stored; else ask `StreamStore.reply`.
    ended: nothing follows; what it was asked last can still be asked again.
    checkpoints: the steps, in order, whose states it can go back to; the last one is `step`.
    """

    id: str
    tenant: Tenant
    model: str
    seed: int
    idle_seconds: int
    created: int
    expires_at: float = 0.0
    step: int = 0
    content: bytes = b""
    reply: bytes = b""
    ended: bool = False
    checkpoints: tuple[int, ...] = (0,)

    def after(self, content: bytes, reply: bytes, most_checkpoints: int, *, ended: bool) -> Self:
        """The stream after its next step."""
        return replace(
            self,
            step=self.step + 1,
            content=content,
            reply=reply,
            ended=ended,
            checkpoints=() if ended else self.checkpoints_after(most_checkpoints),
        )

    def checkpoints_after(self, most: int) -> tuple[int, ...]:
        """The checkpoints after its next step, `most` of them at most."""
        return (*self.checkpoints, self.step + 1)[-most:]

    def rewound_to(self, step: int) -> Self:
        """The stream as it was after one of its checkpoints."""
        kept = tuple(number for number in self.checkpoints if number <= step)
        return replace(self, step=step, content=b"", reply=b"", checkpoints=kept)

    def fork(self, stream_id: str, created: int) -> Self:
        """Another stream in the same state, which goes on from the same number."""
        return replace(
            self,
            id=stream_id,
            created=created,
            content=b"",
            reply=b"",
            checkpoints=(self.step,),
        )


class StreamStore(Protocol):
    """Where streams live. What it is asked of another tenant's stream, it does not know.

    All raise `StreamUnknown` or `StreamExpired` for streams that are not there. A store outside
    this process raises `StoreUnavailable` when it is away, and `StateRefused` for what is not what
    was stored.

    state_output: how the engine is to hand the states over that it is given.
    """

    state_output: StateOutput

    async def add(
        self, served: ServedModel, held: StreamRecord, start: Snapshot | None
    ) -> StreamRecord:
        """Hold a new stream; raises `StreamExists`, which an ended one of the id does not."""
        ...

    async def read(self, tenant: Tenant, stream_id: str) -> StreamRecord:
        """What is known of a stream; it lives no longer for that."""
        ...

    async def model(self, tenant: Tenant, stream_id: str) -> str:
        """The model of a stream, which is always the same; the stream may have gone meanwhile."""
        ...

    async def take(
        self,
        tenant: Tenant,
        stream_id: str,
        *,
        step: int | None = None,
        to_free: bool = False,
        unread: bool = False,
    ) -> StreamRecord | None:
        """Take the right to change a stream, which cannot expire then; None: another has it.

        step: the number of the step to be done; None: the next one, or the state is asked for. A
            store may read the state together with the stream, unless the step is another one.
        to_free: it is to take less memory, which a store that is full allows, too.
        unread: also a stream whose record cannot be read any more, as one of no model.
        """
        ...

    async def release(self, held: StreamRecord, *, used: bool) -> None:
        """Give that right back, if `commit` or another change has not.

        used: the idle time begins anew; else it goes on, with `LEAST_LEFT_SECONDS` at least.
        """
        ...

    async def reply(self, held: StreamRecord) -> bytes:
        """The answer to the last step of a stream that was taken; raises `Overloaded`."""
        ...

    def make_room(self, served: ServedModel, held: StreamRecord, most_checkpoints: int) -> int:
        """Keep room for the state that a step of a taken stream will end in.

        Raises `Refused`, or `StateTooLarge` where a state of the model never has room. Returns how
        many checkpoints the stream may have then: not more than there is room for.
        """
        ...

    async def state(self, served: ServedModel, held: StreamRecord) -> Snapshot | None:
        """The state after the last step of a stream that was taken; None: nothing was read yet."""
        ...

    async def commit(
        self, served: ServedModel, held: StreamRecord, end: SharedState | None
    ) -> StreamRecord | None:
        """Make a step of a taken stream true, whole or not at all, and give the stream back.

        None: it is not, because another has taken the stream meanwhile.
        end: a store that keeps it itself uses it; None: the stream has ended.
        """
        ...

    async def rewind(self, served: ServedModel, held: StreamRecord) -> StreamRecord | None:
        """Make a taken stream what `held` says, with fewer checkpoints, and give it back.

        None: as of `commit`.
        """
        ...

    async def fork(
        self, served: ServedModel, held: StreamRecord, copies: list[StreamRecord]
    ) -> list[StreamRecord]:
        """Hold streams in the state of a taken one: all of them or none."""
        ...

    async def delete(self, held: StreamRecord) -> None:
        """Forget a taken stream."""
        ...

    async def end(self, engine: Engine) -> None:
        """An engine has ended, and with it the states that it keeps: let its memory go."""
        ...

    async def start(self) -> None:
        """Begin to serve."""
        ...

    async def stop(self) -> None:
        """Let go of connections and timers."""
        ...


def missing_stream(*, expired: bool) -> StreamExpired | StreamUnknown:
    """The error of a stream that a store does not hold, or not any more."""
    if expired:
        return StreamExpired("the stream was idle for too long and is gone; create another one")
    return StreamUnknown("there is no such stream, or it was deleted; create one")


def lease_lost() -> StoreUnavailable:
    """The error of a change that came to nothing because another replica has the stream."""
    return StoreUnavailable("another replica has taken the stream; send the same request again")
