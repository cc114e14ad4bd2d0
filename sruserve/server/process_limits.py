"""The system's limit on the processes and threads that this process may start."""

import resource
from collections.abc import Iterator

from sruserve.model.control_groups import SYSTEM, SystemFiles, own_groups, read_value


def process_limit(system: SystemFiles = SYSTEM) -> int | None:
    """The lowest limit of the user, the container or the service; None: there is none."""
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    limits = [*_of_groups(system), *([] if soft == resource.RLIM_INFINITY else [soft])]
    return min(limits, default=None)


def _of_groups(system: SystemFiles) -> Iterator[int]:
    for group in own_groups("pids", system):
        limit = read_value(group, "pids.max")
        if limit.isdigit():
            yield int(limit)
