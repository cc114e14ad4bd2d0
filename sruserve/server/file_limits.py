"""Divide a worker's descriptors among HTTP, gRPC and everything else."""

import resource

_RESERVED = 64  # minimum of descriptors for models, Redis, grammars and logs
_MIN_CONNECTIONS = 16  # of HTTP: with fewer, a few clients keep probes out


def divide_files(connections: int, grpc: int) -> tuple[int, int]:
    """Raise the process's limit of open files; returns the HTTP and the gRPC connections.

    gRPC gets at most a quarter of the descriptors, everything but connections a quarter, and HTTP
    the rest.

    connections, grpc: the most of each; grpc 0: it is not served.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * max(connections, 2 * grpc) + _RESERVED
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return _divided(connections, grpc, soft)


def files_refusal(connections: int, grpc: int) -> str:
    """Why the limit of open files is too low to serve; an empty string if it is not."""
    possible, _ = divide_files(connections, grpc)
    if possible >= min(connections, _MIN_CONNECTIONS):
        return ""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = _needed(min(connections, _MIN_CONNECTIONS), grpc)
    return (
        f"the limit of open files is {limit}, and a worker needs {least} to serve at all: raise it "
        f"to {_needed(connections, grpc)} for SRUSERVE_MAX_CONNECTIONS={connections} "
        "(`ulimit -Hn`, LimitNOFILE)"
    )


def files_warning(connections: int, grpc: int) -> str:
    """What a low limit of open files leaves of the connections; an empty string if all."""
    possible, _ = divide_files(connections, grpc)
    if possible >= connections:
        return ""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"the limit of open files is {limit}, so a worker accepts {possible} connections instead "
        f"of SRUSERVE_MAX_CONNECTIONS={connections}: raise the limit to "
        f"{_needed(connections, grpc)} (`ulimit -Hn`, LimitNOFILE), or lower the setting"
    )


def _needed(connections: int, grpc: int) -> int:
    """The least limit of open files with which a worker accepts so many HTTP connections."""
    files = connections
    while _divided(connections, grpc, files)[0] < connections:
        files += connections - _divided(connections, grpc, files)[0]
    return files


def _divided(connections: int, grpc: int, files: int) -> tuple[int, int]:
    """The HTTP and the gRPC connections of so many descriptors."""
    if files == resource.RLIM_INFINITY:
        return connections, grpc
    available = files - max(_RESERVED, files // 4)
    grpc_connections = min(grpc, max(1, available // 3))
    return min(connections, max(1, available - grpc_connections)), grpc_connections
