"""How many processes and threads this process and its like may start, as the system bounds them."""

import resource
from collections.abc import Iterator
from pathlib import Path

_PROC, _CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def process_limit() -> int | None:
    """The least limit of the user and of the container or service; None: there is none."""
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    limits = [*_of_cgroups(), *([] if soft == resource.RLIM_INFINITY else [soft])]
    return min(limits, default=None)


def _of_cgroups() -> Iterator[int]:
    """The limits of the control groups of both versions that this process is in."""
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
        for each in (folder, *folder.parents):  # in a container, they may begin at its own root
            try:
                limit = (each / "pids.max").read_text().strip()
            except OSError:
                limit = "max"
            if limit.isdigit():
                yield int(limit)
            if each == root:
                break
