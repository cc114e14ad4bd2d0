"""The system's limit on the processes and threads that this process may start."""

import resource
from collections.abc import Iterator
from pathlib import Path

_PROC, _CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def process_limit() -> int | None:
    """The lowest limit of the user, the container or the service; None: there is none."""
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    limits = [*_of_cgroups(), *([] if soft == resource.RLIM_INFINITY else [soft])]
    return min(limits, default=None)


def _of_cgroups() -> Iterator[int]:
    """The limits of this process's control groups, of versions 1 and 2."""
    try:
        lines = _PROC.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "pids"):
            continue
        root = _CGROUPS / controllers
        folder = root / path.strip("/")
        for group in (folder, *folder.parents):  # in a container, they may begin at its own root
            try:
                limit = (group / "pids.max").read_text().strip()
            except OSError:
                limit = "max"
            if limit.isdigit():
                yield int(limit)
            if group == root:
                break
