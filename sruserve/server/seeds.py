"""Random seeds of samplers and random bytes of ids, fetched from the system in blocks.

Each system call gives the interpreter to another thread, which costs a small request more than all
its checks. Threads that fetch at the same time replace each other's blocks.
"""

from os import register_at_fork, urandom
from struct import iter_unpack

_BYTES = 4096

_seeds: list[int] = []
_byte_strings: list[bytes] = []


def new_seed() -> int:
    """A random seed from 0 to 2^63 - 1; thread-safe."""
    while True:
        try:
            return _seeds.pop()
        except IndexError:
            _seeds[:] = [number >> 1 for (number,) in iter_unpack("<Q", urandom(_BYTES))]


def random_bytes() -> bytes:
    """16 random bytes; thread-safe."""
    while True:
        try:
            return _byte_strings.pop()
        except IndexError:
            _byte_strings[:] = [part for (part,) in iter_unpack("16s", urandom(_BYTES))]


# else a process and its fork would use the same numbers
register_at_fork(after_in_child=_seeds.clear)
register_at_fork(after_in_child=_byte_strings.clear)
