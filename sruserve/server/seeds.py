"""Seeds of samplers: the system's random numbers, fetched many at a time."""

from os import urandom
from struct import iter_unpack

_BYTES = 4096

_ready: list[int] = []


def new_seed() -> int:
    """A seed that nobody can guess, 0 to 2^63 - 1; any thread.

    Each call of the system gives the interpreter to another thread, which costs a small request
    more than all its checks.
    """
    while True:
        try:
            return _ready.pop()
        except IndexError:
            _ready.extend([number >> 1 for (number,) in iter_unpack("<Q", urandom(_BYTES))])
