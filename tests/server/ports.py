"""Ports for servers that have to know theirs before they start, or start twice on it."""

import socket

_reserved: list[socket.socket] = []


def free_port() -> int:
    """A port that the system gives to nobody else until this process ends.

    A socket that is bound and does not listen keeps it; a server's socket, which may reuse
    addresses as this one, can be bound beside it. Our gRPC server shares its port
    with nobody: it needs `bench.serve.processes.free_port`.
    """
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("127.0.0.1", 0))
    _reserved.append(reservation)
    return int(reservation.getsockname()[1])
