"""Limit the process that tries a file, for its whole life."""

import resource


def limit_this_process(seconds: int, memory_bytes: int) -> None:
    """Limit CPU time and address space, and write no core file.

    A limit that the process has inherited stays, if it is lower: only root could raise it.
    """
    limits = {
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        _, inherited = resource.getrlimit(kind)
        own = limit if inherited == resource.RLIM_INFINITY else min(limit, inherited)
        resource.setrlimit(kind, (own, own))
