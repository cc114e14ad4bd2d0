"""What the server and the process of a grammar say to each other: frames, and what is in them."""

import json
import struct
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sruserve.server.errors import (
    ConstraintUnsatisfiable,
    EngineFailure,
    InvalidRequest,
    ServeError,
    StateTampered,
)

FORK = 0  # what the helper is asked for; any other number is a process to kill
COMMAND = struct.Struct("<i")
BEGIN, COPY, TAKE, SETTLE, DROP = b"B", b"C", b"T", b"S", b"D"
MESSAGE = struct.Struct("<cQI")  # of what, which position, and a token, count or ms
_LENGTH = struct.Struct("<I")
_POSITION = struct.Struct("<?Q32s")
_GOOD, _BAD = b"+", b"-"
_ERRORS = {
    error.__name__: error
    for error in (InvalidRequest, ConstraintUnsatisfiable, StateTampered, EngineFailure)
}


class Position(NamedTuple):
    """Where a text is after a message.

    taken: whether the token was. held_bytes: what the process has come to hold.
    options: (256), which bytes may come next.
    """

    taken: bool
    held_bytes: int
    options: NDArray[np.bool_]
    problem: ServeError | None = None


def frame(message: bytes) -> bytes:
    """A message as it is sent."""
    return _LENGTH.pack(len(message)) + message


def receive(channel: BinaryIO) -> bytes:
    """The next message; raises `EOFError` at the end."""
    (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size))
    return _exactly(channel, length)


def next_frame(received: bytearray) -> bytes | None:
    """Take the first message out of what was received; None: it is not complete."""
    if len(received) < _LENGTH.size:
        return None
    end = _LENGTH.size + _LENGTH.unpack_from(received)[0]
    if len(received) < end:
        return None
    message = bytes(received[_LENGTH.size : end])
    del received[:end]
    return message


def good(reply: bytes) -> bytes:
    """A reply."""
    return _GOOD + reply


def bad(error: ServeError) -> bytes:
    """An error as a reply."""
    return _BAD + _error_bytes(error)


def opened(reply: bytes) -> bytes:
    """What `good` has wrapped; raises what `bad` has."""
    if reply[:1] == _GOOD:
        return reply[1:]
    raise _error(reply[1:])


def pack_position(position: Position) -> bytes:
    """A position as bytes."""
    options = np.packbits(position.options).tobytes()
    packed = _POSITION.pack(position.taken, position.held_bytes, options)
    return packed if position.problem is None else packed + _error_bytes(position.problem)


def unpack_position(packed: bytes) -> Position:
    """What `pack_position` has packed."""
    taken, held_bytes, bits = _POSITION.unpack_from(packed)
    options = np.unpackbits(np.frombuffer(bits, np.uint8)).astype(np.bool_)
    problem = packed[_POSITION.size :]
    return Position(taken, held_bytes, options, _error(problem) if problem else None)


def _exactly(channel: BinaryIO, count: int) -> bytes:
    received = channel.read(count)
    if len(received) < count:
        raise EOFError
    return received


def _error_bytes(error: ServeError) -> bytes:
    return json.dumps([type(error).__name__, error.message]).encode()


def _error(packed: bytes) -> ServeError:
    name, message = json.loads(packed)
    return _ERRORS.get(name, EngineFailure)(message)
