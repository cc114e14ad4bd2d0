"""Limit the sequences that hold a state: no tenant's long requests may take all of the rows."""

from collections.abc import Hashable

from sruserve.server.engine.job import Job
from sruserve.server.engine.sequence import ActiveSequence

_TENANT_SHARE = 15  # a tenant may hold 15 rows for each free row: alone, 15/16 of all rows
_FIRST_SHARE = 31  # for the first sequence of a request: 31/32


class StateAdmission:
    """Counts the sequences that may hold a state, and reserves the last rows.

    1/16 of the rows stays free for other tenants and for requests that hold no state yet. Half of
    that is for short requests alone, which return their rows at once.
    """

    def __init__(self) -> None:
        self._count = 0
        self._of_job: dict[Job, int] = {}
        self._of_tenant: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return self._count

    def allows(self, job: Job, short: bool, max_admitted: int) -> bool:
        """Whether one more sequence of a job may hold a state, if `max_admitted` may in all."""
        free = max_admitted - self._count
        if short or free <= 0:
            return free > 0
        share = _TENANT_SHARE if job in self._of_job else _FIRST_SHARE
        return self._of_tenant.get(job.tenant, 0) < share * free

    def add(self, sequence: ActiveSequence) -> None:
        """Count a sequence that may hold a state from now on."""
        sequence.admitted = True
        job, tenant = sequence.job, sequence.job.tenant
        self._of_job[job] = self._of_job.get(job, 0) + 1
        self._of_tenant[tenant] = self._of_tenant.get(tenant, 0) + 1
        self._count += 1

    def remove(self, sequence: ActiveSequence) -> None:
        """Stop counting a sequence that no longer holds a state."""
        sequence.admitted = False
        left = self._of_job[sequence.job] = self._of_job[sequence.job] - 1
        if not left:
            del self._of_job[sequence.job]
        self._release(sequence.job.tenant, 1)

    def drop(self, job: Job) -> None:
        """Stop counting all of a job's sequences."""
        if count := self._of_job.pop(job, 0):
            self._release(job.tenant, count)

    def _release(self, tenant: Hashable, count: int) -> None:
        self._count -= count
        left = self._of_tenant[tenant] = self._of_tenant[tenant] - count
        if not left:
            del self._of_tenant[tenant]
