"""The system's limit on the processes and threads that this process may start."""

import resource
from collections.abc import Iterator

from sruserve.model.control_groups import own_groups, read_value


def process_limit() -> int | None:
    """The lowest limit of the user, the container or the service; None: there is none."""
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    limits = [*_of_groups(), *([] if soft == resource.RLIM_INFINITY else [soft])]
    return min(limits, default=None)


def _of_groups() -> Iterator[int]:
    for group in own_groups("pids"):
        limit = read_value(group, "pids.max")
        if limit.isdigit():
            yield int(limit)
