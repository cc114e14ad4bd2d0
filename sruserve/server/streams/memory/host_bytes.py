"""Host memory of streams in this process, without the rows of their states."""

from collections.abc import Iterable

from sruserve.server.auth import Tenant
from sruserve.server.budget import Budget
from sruserve.server.errors import ServeError
from sruserve.server.streams.record import StreamRecord
from sruserve.server.streams.shared_state import SharedState

STREAM_BYTES = 1024  # of objects, at most, for a stream, with its place in every table
STATE_BYTES = 1024  # the same for each state of it


class HostBytes:
    """Host memory of a stream without its states' rows, counted in its tenant's part and quota."""

    __slots__ = ("_of_part", "_of_quota", "amount")

    def __init__(self, part: Budget, tenant: Tenant) -> None:
        self.amount = 0
        self._of_part = part.hold(owner=tenant.id)
        self._of_quota = tenant.state_budget.hold()

    def resize(self, amount: int, freed: int = 0, freed_rows: int = 0) -> None:
        """Reserve `amount` bytes instead; a refusal changes nothing.

        freed, freed_rows: bytes of another stream, and of rows, that the tenant is about to free.
        """
        # The quota first: where both are full, its error names the limit of the tenant's key.
        self._of_quota.resize(amount, freed + freed_rows)
        try:
            self._of_part.resize(amount, freed)
        except ServeError:
            self._of_quota.resize(self.amount)
            raise
        self.amount = amount

    def release(self) -> None:
        """Stop counting."""
        self._of_part.release()
        self._of_quota.release()


def cost_of(record: StreamRecord, states: Iterable[SharedState | None]) -> int:
    """Host memory of a stream in bytes, without the rows of its states."""
    cost = STREAM_BYTES + len(record.id) + len(record.reply)
    for state in states:
        cost += STATE_BYTES + (state.host_bytes if state is not None else 0)
    return cost
