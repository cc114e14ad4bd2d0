"""Limit what the kernel holds of a connection whose other end, or whose server, does not read."""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress

DESCRIPTORS = "/proc/self/fd"
# The kernel would take up to 4 MiB of a reply that nobody reads; what it has sent is not limited,
# so long ways are as fast.
_UNSENT_BYTES = 16 << 10
# Of requests that nobody reads. The kernel allows twice as much, for its own needs, and would
# otherwise allow many megabytes of a client that has sent long requests before.
_UNREAD_BYTES = 128 << 10


def limit_buffers(listener: socket.socket, unsent_option: int = socket.TCP_NOTSENT_LOWAT) -> None:
    """Limit the buffers of the connections that a socket will accept.

    unsent_option: the number of TCP's option for bytes that are not sent yet.
    """
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _UNREAD_BYTES)
    with suppress(OSError):  # some sandboxes' kernels do not have it
        listener.setsockopt(socket.IPPROTO_TCP, unsent_option, _UNSENT_BYTES)


def limit_buffers_of_port(port: int) -> None:
    """Limit the buffers of the listener on a port, whose descriptor its library does not tell."""
    for each in _own_sockets():
        with each:
            if (
                each.family in (socket.AF_INET, socket.AF_INET6)
                and each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
                and each.getsockname()[1] == port
            ):
                limit_buffers(each)


def socket_of(descriptor: int) -> socket.socket:
    """A socket of this process, with a descriptor of its own; raises `OSError` for others."""
    own = os.dup(descriptor)
    try:
        return socket.socket(fileno=own)
    except OSError:
        os.close(own)
        raise


def _own_sockets() -> Iterator[socket.socket]:
    """This process's sockets, each with a descriptor of its own; none where there is no /proc."""
    with suppress(FileNotFoundError):
        for name in os.listdir(DESCRIPTORS):
            with suppress(OSError):  # it is closed meanwhile, or no socket
                yield socket_of(int(name))
