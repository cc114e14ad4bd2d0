"""Choose the jobs of a step that takes each job whole, where not all of them fit into it."""

from collections.abc import Sequence

from sruserve.server.engine.job import Job


class JobTurns:
    """In every second step the oldest jobs come first, and in the others the smallest.

    So a small job waits for one step at most, and no job waits for ever.
    """

    def __init__(self) -> None:
        self._oldest_first = False

    def choose(self, jobs: Sequence[Job], max_rows: int) -> tuple[list[Job], list[Job]]:
        """Return the jobs for the next step of up to `max_rows` rows, and those that are left.

        jobs: in the order in which they came, as are those that are left.
        """
        self._oldest_first = not self._oldest_first
        chosen: dict[Job, None] = {}
        for job in jobs if self._oldest_first else sorted(jobs, key=_rows):
            if job.inputs <= max_rows:
                chosen[job] = None
                max_rows -= job.inputs
        return list(chosen), [job for job in jobs if job not in chosen]


def may_take_turns(jobs: Sequence[Job], max_rows: int) -> bool:
    """Whether turns are fair: one owner's jobs of one priority, none of more than a step."""
    owner, priority = jobs[0].tenant, jobs[0].priority
    return all(
        job.tenant == owner and job.priority == priority and job.inputs <= max_rows for job in jobs
    )


def _rows(job: Job) -> int:
    return job.inputs
