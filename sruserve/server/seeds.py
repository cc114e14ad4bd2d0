"""The system's random numbers, fetched many at a time: seeds of samplers, and bytes of names.

Each call of the system gives the interpreter to another thread, which costs a small request more
than all its checks. Threads that fetch at once replace what the others have fetched.
"""

from os import register_at_fork, urandom
from struct import iter_unpack

_BYTES = 4096

_ready: list[int] = []
_ready_bytes: list[bytes] = []


def new_seed() -> int:
    """A seed that nobody can guess, 0 to 2^63 - 1; any thread."""
    while True:
        try:
            return _ready.pop()
        except IndexError:
            _ready[:] = [number >> 1 for (number,) in iter_unpack("<Q", urandom(_BYTES))]


def random_bytes() -> bytes:
    """16 bytes that nobody can guess; any thread."""
    while True:
        try:
            return _ready_bytes.pop()
        except IndexError:
            _ready_bytes[:] = [part for (part,) in iter_unpack("16s", urandom(_BYTES))]


# else a process and its fork would give out the same
register_at_fork(after_in_child=_ready.clear)
register_at_fork(after_in_child=_ready_bytes.clear)
