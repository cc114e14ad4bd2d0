"""The cores and the memory of the machine that this process may use."""

import math
import os
import re
from collections.abc import Iterator

from sruserve.model.control_groups import SYSTEM, SystemFiles, own_groups, read_value

GIB = 1 << 30
_FILE = re.compile(r"(in)?active_file \d+$")


def usable_cores(system: SystemFiles = SYSTEM) -> int:
    """The number of cores that this process can keep busy, at least 1.

    These are the cores that it may run on, or fewer if the CPU time of its container or service is
    limited. A part of a core counts as a whole one.
    """
    cores = len(os.sched_getaffinity(0))
    limit = cpu_limit(system)
    return cores if limit is None else max(1, min(cores, math.ceil(limit)))


def cpu_limit(system: SystemFiles = SYSTEM) -> float | None:
    """The lowest limit of CPU time of the container or the service, in cores; None: no limit."""
    return min(_cpu_limits(system), default=None)


def memory_limit(system: SystemFiles = SYSTEM) -> int | None:
    """The lowest memory limit of the container or the service, in bytes; None: no limit."""
    return min(_memory_limits(system), default=None)


def describe_machine(system: SystemFiles = SYSTEM) -> str:
    """What this process may use, as a log line has it."""
    cpus, memory = cpu_limit(system), memory_limit(system)
    return (
        f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores, "
        f"{'no CPU limit' if cpus is None else f'CPU limit {cpus:g}'}, "
        f"{'no memory limit' if memory is None else f'memory limit {memory / GIB:.1f} GiB'}"
    )


def _cpu_limits(system: SystemFiles) -> Iterator[float]:
    for group in own_groups("cpu", system):
        quota, _, period = read_value(group, "cpu.max").partition(" ")
        if not quota:  # version 1
            quota, period = (
                read_value(group, f"cpu.cfs_{name}_us") for name in ("quota", "period")
            )
        if quota.isdigit() and period.isdigit() and int(period):  # neither "max" nor -1
            yield int(quota) / int(period)


def installed_memory() -> int:
    """The memory of the machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_memory(system: SystemFiles = SYSTEM) -> int:
    """The memory that is free now, or that the kernel can free, in bytes: of machine and limits."""
    amounts = [*_room_in_groups(system)]
    try:
        lines = dict(line.split(":", 1) for line in system.memory.read_text().splitlines())
        kilobytes = (lines[name].split()[0] for name in ("MemAvailable", "SwapFree"))
        amounts.append(sum(map(int, kilobytes)) << 10)
    except (OSError, LookupError, ValueError):  # a system without these lines
        amounts.append(installed_memory())
    return max(0, min(amounts))


def _room_in_groups(system: SystemFiles) -> Iterator[int]:
    """Yield what each control group with a limit has left; cached files are no use of it."""
    for group in own_groups("memory", system):
        limit = read_value(group, "memory.max") or read_value(group, "memory.limit_in_bytes")
        usage = read_value(group, "memory.current") or read_value(group, "memory.usage_in_bytes")
        if limit.isdigit() and usage.isdigit():
            statistics = read_value(group, "memory.stat").splitlines()
            files = [line.split()[1] for line in statistics if _FILE.match(line)]
            yield int(limit) - int(usage) + sum(map(int, files))


def _memory_limits(system: SystemFiles) -> Iterator[int]:
    installed = installed_memory()
    for group in own_groups("memory", system):
        limit = read_value(group, "memory.max") or read_value(group, "memory.limit_in_bytes")
        if limit.isdigit() and int(limit) < installed:  # version 1 has a huge number for "max"
            yield int(limit)
