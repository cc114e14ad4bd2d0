"""The control groups of this process, in which a container or a service has its limits."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class SystemFiles(NamedTuple):
    """Where the system says what this process may use.

    groups: the list of its control groups. mounted: the folder of all groups.
    memory: what the machine has.
    """

    groups: Path = Path("/proc/self/cgroup")
    mounted: Path = Path("/sys/fs/cgroup")
    memory: Path = Path("/proc/meminfo")


SYSTEM = SystemFiles()


def own_groups(controller: str, system: SystemFiles = SYSTEM) -> Iterator[Path]:
    """The folders of the groups that may limit this process, of versions 1 and 2.

    Each group is followed by those that it is in, whose limits hold, too.
    """
    try:
        lines = system.groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = system.mounted / controllers
        folder = root / path.strip("/")
        for group in (folder, *folder.parents):  # in a container, they may begin at its own root
            yield group
            if group == root:
                break


def read_value(group: Path, name: str) -> str:
    """A file of a group, without its line break; an empty string if there is none."""
    try:
        return (group / name).read_text().strip()
    except OSError:
        return ""
