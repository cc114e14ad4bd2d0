"""Ports for servers that have to know theirs before they start, or start twice on it."""

import socket

_reserved: list[socket.socket] = []


def free_port() -> int:
    """A port that the system gives to nobody else until this process ends.

    A socket that is bound and does not listen keeps it; a server's socket, which may reuse
    addresses as this one, can be bound beside it.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _reserved.append(holder)
    return int(holder.getsockname()[1])
