"""The interface of the stores of server-held streams."""

from typing import Protocol

from sruserve.server.auth import Tenant
from sruserve.server.engine.job_engine import JobEngine
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.errors import StoreUnavailable, StreamExpired, StreamUnknown
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.streams.record import StreamRecord
from sruserve.server.streams.shared_state import SharedState

MAX_REPLY_BYTES = 64 << 20  # of stored replies that are read at a time
MIN_IDLE_SECONDS = 1.0  # after a request that failed, so that its client can retry


class StreamStore(Protocol):
    """Holds streams between steps. To a tenant, the streams of other tenants do not exist.

    All methods raise `StreamUnknown` or `StreamExpired` for a stream that is not there. A store
    outside this process raises `StoreUnavailable` if it cannot be reached, and `StateRefused` if
    the stored data was changed.

    state_output: the form in which the engine returns states for this store.
    """

    state_output: StateOutput

    async def add(
        self, served: ServedModel, record: StreamRecord, start: Snapshot | None
    ) -> StreamRecord:
        """Add a new stream; raises `StreamExists` if a live stream has the id."""
        ...

    async def read(self, tenant: Tenant, stream_id: str) -> StreamRecord:
        """The record of a stream; reading it does not extend its life."""
        ...

    async def model(self, tenant: Tenant, stream_id: str) -> tuple[str, str]:
        """The name of a stream's model, and its weights; the stream may no longer exist."""
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
        """Take the lease of a stream, which cannot expire meanwhile; None: another replica has it.

        step: the number of the requested step; None: the next one, or a request for the state. A
            store may read the state together with the stream, unless the step is another one.
        to_free: the request frees memory, so a full store allows it, too.
        unread: take also a stream whose record is unreadable, with an empty model.
        """
        ...

    async def release(self, record: StreamRecord, *, used: bool) -> None:
        """Release the lease, unless `commit` or another change has released it.

        used: restart the idle time; else it continues, with at least `MIN_IDLE_SECONDS`.
        """
        ...

    async def reply(self, record: StreamRecord) -> bytes:
        """The reply to the last step of a taken stream; raises `Overloaded`."""
        ...

    def make_room(self, served: ServedModel, record: StreamRecord, max_checkpoints: int) -> int:
        """Reserve room for the end state of the next step of a taken stream.

        Raises `Refused`, or `StateTooLarge` if no state of the model ever fits. Returns the number
        of checkpoints that the stream may have then: not more than there is room for.
        """
        ...

    async def state(self, served: ServedModel, record: StreamRecord) -> Snapshot | None:
        """The state after the last step of a taken stream; None: it has read no input yet."""
        ...

    async def commit(
        self, served: ServedModel, record: StreamRecord, end: SharedState | None
    ) -> StreamRecord | None:
        """Commit a step of a taken stream, as a whole or not at all, and release the lease.

        Returns None, and changes nothing, if another replica has taken the stream meanwhile.
        end: the state after the step; None: the stream has ended.
        """
        ...

    async def rewind(self, served: ServedModel, record: StreamRecord) -> StreamRecord | None:
        """Replace a taken stream by `record`, which has fewer checkpoints, and release the lease.

        None: see `commit`.
        """
        ...

    async def fork(
        self, served: ServedModel, record: StreamRecord, copies: list[StreamRecord]
    ) -> list[StreamRecord]:
        """Add `copies` with the state of a taken stream: all of them or none."""
        ...

    async def delete(self, record: StreamRecord) -> None:
        """Delete a taken stream."""
        ...

    async def end(self, engine: JobEngine) -> None:
        """Drop references to an engine that has ended, and to the states that it held."""
        ...

    async def start(self) -> None:
        """Connect and start timers."""
        ...

    async def stop(self) -> None:
        """Close connections and stop timers."""
        ...


def missing_stream(*, expired: bool) -> StreamExpired | StreamUnknown:
    """The error for a stream that does not exist, or no longer does."""
    if expired:
        return StreamExpired("the stream was idle for too long and is gone; create another one")
    return StreamUnknown("there is no such stream, or it was deleted; create one")


def lease_lost() -> StoreUnavailable:
    """The error of a change that failed because another replica has taken the stream."""
    return StoreUnavailable("another replica has taken the stream; send the same request again")
