"""Which streams may hold a state: rows are few, and nobody's long requests may take all of them."""

from collections.abc import Hashable

from sruserve.server.engine.jobs import Job
from sruserve.server.engine.streams import Stream

_TENANT = 15  # a tenant may hold 15 rows for each one that stays free: alone, 15/16 of all
_FIRST = 31  # for the first stream of a request: 31/32


class Admitted:
    """Counts the streams that may hold a state, and keeps the last rows for those who hold few.

    Of the rows, 1/16 stays free for other tenants and for requests that hold none yet, and half of
    that for brief requests alone, which give theirs back at once.
    """

    def __init__(self) -> None:
        self._count = 0
        self._of_job: dict[Job, int] = {}
        self._of_tenant: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return self._count

    def allows(self, job: Job, brief: bool, room: int) -> bool:
        """Whether one more stream of a job may hold a state, if `room` streams may in all."""
        free = room - self._count
        if brief or free <= 0:
            return free > 0
        most = _TENANT if job in self._of_job else _FIRST
        return self._of_tenant.get(job.tenant, 0) < most * free

    def add(self, stream: Stream) -> None:
        """A stream may hold a state from now on."""
        stream.admitted = True
        job, tenant = stream.job, stream.job.tenant
        self._of_job[job] = self._of_job.get(job, 0) + 1
        self._of_tenant[tenant] = self._of_tenant.get(tenant, 0) + 1
        self._count += 1

    def remove(self, stream: Stream) -> None:
        """A stream holds none any more."""
        stream.admitted = False
        left = self._of_job[stream.job] = self._of_job[stream.job] - 1
        if not left:
            del self._of_job[stream.job]
        self._release(stream.job.tenant, 1)

    def drop(self, job: Job) -> None:
        """None of a job's streams holds one any more."""
        if count := self._of_job.pop(job, 0):
            self._release(job.tenant, count)

    def _release(self, tenant: Hashable, count: int) -> None:
        self._count -= count
        left = self._of_tenant[tenant] = self._of_tenant[tenant] - count
        if not left:
            del self._of_tenant[tenant]
