"""The messages between the server and a grammar process: their frames and their contents."""

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

FORK = 0  # the command to fork a process; any other number is the pid of one to kill
COMMAND = struct.Struct("<i")
BEGIN, COPY, ADVANCE, COMMIT, DROP = b"B", b"Y", b"A", b"C", b"D"
MESSAGE = struct.Struct("<cQI")  # operation, number of the text; milliseconds, a token or a count
_LENGTH = struct.Struct("<I")
_POSITION = struct.Struct("<?Q32s")
_OK, _FAILED = b"+", b"-"
_ERRORS = {
    error.__name__: error
    for error in (InvalidRequest, ConstraintUnsatisfiable, StateTampered, EngineFailure)
}


class Position(NamedTuple):
    """The position of a text after a message.

    accepted: whether the token was consumed. used_bytes: the memory that the process has added.
    options: (256), bool: which bytes may follow.
    """

    accepted: bool
    used_bytes: int
    options: NDArray[np.bool_]
    problem: ServeError | None = None


def frame(message: bytes) -> bytes:
    """A message with its length before it."""
    return _LENGTH.pack(len(message)) + message


def receive(channel: BinaryIO) -> bytes:
    """Read the next message; raises `EOFError` at the end."""
    (length,) = _LENGTH.unpack(_read_exactly(channel, _LENGTH.size))
    return _read_exactly(channel, length)


def next_frame(received: bytearray) -> bytes | None:
    """Remove the first message from the received bytes; None: it is incomplete."""
    if len(received) < _LENGTH.size:
        return None
    end = _LENGTH.size + _LENGTH.unpack_from(received)[0]
    if len(received) < end:
        return None
    message = bytes(received[_LENGTH.size : end])
    del received[:end]
    return message


def ok_reply(content: bytes) -> bytes:
    """A reply that is no error."""
    return _OK + content


def error_reply(error: ServeError) -> bytes:
    """A reply that is an error."""
    return _FAILED + _error_bytes(error)


def unpack_reply(reply: bytes) -> bytes:
    """The content of an `ok_reply`; raises the error of an `error_reply`."""
    if reply[:1] == _OK:
        return reply[1:]
    raise _error(reply[1:])


def pack_position(position: Position) -> bytes:
    """Pack a position as bytes."""
    options = np.packbits(position.options).tobytes()
    packed = _POSITION.pack(position.accepted, position.used_bytes, options)
    return packed if position.problem is None else packed + _error_bytes(position.problem)


def unpack_position(packed: bytes) -> Position:
    """Unpack a position that `pack_position` packed."""
    accepted, used_bytes, bits = _POSITION.unpack_from(packed)
    options = np.unpackbits(np.frombuffer(bits, np.uint8)).astype(np.bool_)
    problem = packed[_POSITION.size :]
    return Position(accepted, used_bytes, options, _error(problem) if problem else None)


def _read_exactly(channel: BinaryIO, count: int) -> bytes:
    received = channel.read(count)
    if len(received) < count:
        raise EOFError
    return received


def _error_bytes(error: ServeError) -> bytes:
    return json.dumps([type(error).__name__, error.message]).encode()


def _error(packed: bytes) -> ServeError:
    name, message = json.loads(packed)
    return _ERRORS.get(name, EngineFailure)(message)
