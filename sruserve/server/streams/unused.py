"""Delete the streams that were created for callers who have left."""

from contextlib import suppress

from sruserve.server.errors import ServeError
from sruserve.server.streams.lease import LeaseManager
from sruserve.server.streams.record import StreamRecord
from sruserve.server.streams.store import StreamStore


async def delete_unused(store: StreamStore, leases: LeaseManager, new: StreamRecord) -> None:
    """Delete a new stream unless it had a step."""
    with suppress(ServeError):  # it does not exist, or expires
        async with await leases.take(store, new.tenant, new.id, to_free=True, use=False) as record:
            if (record.step, record.seed) == (new.step, new.seed):  # else it is another stream
                await store.delete(record)
