"""Pack a `Snapshot` into bytes and unpack it, checking every length and range."""

import struct

import numpy as np
from numpy.typing import NDArray

from sruserve.server.engine.constrained.protocols import IDENTITY_BYTES, MAX_MATCH_BYTES
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import StateNotFinite, StateTampered

# steps, pending, seed, choice; then the numbers of floats in the row and in the probabilities, of
# tokens in the window, and of bytes in each of the five strings
_HEAD = struct.Struct("<QqQQIIIIIIII")
_MAX_WINDOW = 1 << 16


def numbers_size(width: int, classes: int, window: int) -> int:
    """The packed size of a snapshot with these numbers of values, without its texts."""
    return _HEAD.size + 4 * (width + classes) + 8 * window


def packed_bytes(snapshot: Snapshot) -> int:
    """The packed size of a snapshot, without packing it."""
    texts = len(snapshot.word.encode()) + len(snapshot.held_back.encode())
    texts += len(snapshot.utf8) + len(snapshot.constraint) + len(snapshot.consumed)
    row, probabilities = np.asarray(snapshot.row, "<f4").size, snapshot.probabilities.size
    return numbers_size(row, probabilities, len(snapshot.window)) + texts


def pack_snapshot(snapshot: Snapshot) -> bytes:
    """Header, row and probabilities (float32), window (int64), then the strings; little-endian."""
    row = np.ascontiguousarray(snapshot.row, dtype="<f4")
    probabilities = np.ascontiguousarray(snapshot.probabilities, dtype="<f4")
    strings = (
        snapshot.word.encode(),
        snapshot.utf8,
        snapshot.held_back.encode(),
        snapshot.constraint,
        snapshot.consumed,
    )
    head = _HEAD.pack(
        snapshot.steps,
        snapshot.pending,
        snapshot.seed,
        snapshot.choice,
        row.size,
        probabilities.size,
        len(snapshot.window),
        *map(len, strings),
    )
    window = np.array(snapshot.window, dtype="<i8")
    return b"".join((head, row.tobytes(), probabilities.tobytes(), window.tobytes(), *strings))


def unpack_snapshot(data: bytes, width: int) -> Snapshot:
    """Read a snapshot whose row is (width), or raise `StateTampered` or `StateNotFinite`.

    Up to two zero bytes may follow the last string: they pad a token to whole base64 groups.
    """
    if len(data) < _HEAD.size:
        raise StateTampered("the state is incomplete; send it exactly as it was returned")
    steps, pending, seed, choice, floats, classes, tokens, *strings = _HEAD.unpack_from(data)
    end = _HEAD.size + 4 * (floats + classes) + 8 * tokens + sum(strings)
    if floats != width or tokens > _MAX_WINDOW or data[end:] not in (b"", b"\0", b"\0\0"):
        raise StateTampered("the state's parts do not fit together; send it as it was returned")
    if len(data) < end or not -1 <= pending < 2**31 or steps >= 2**62:
        raise StateTampered("the state's values are out of range; send it as it was returned")
    numbers, offset = _array(data, "<f4", floats + classes, _HEAD.size)
    window, offset = _array(data, "<i8", tokens, offset)
    parts = []
    for length in strings:
        parts.append(data[offset : offset + length])
        offset += length
    word, utf8, held_back, constraint, consumed = parts
    if len(constraint) not in (0, IDENTITY_BYTES) or len(consumed) > MAX_MATCH_BYTES * bool(
        constraint
    ):
        raise StateTampered("the state's constraint does not fit; send it as it was returned")
    if not np.isfinite(numbers).all():
        raise StateNotFinite(
            "the state contains NaN or infinity and cannot be continued; use an earlier state"
        )
    if tokens and not 0 <= window.min() <= window.max() < 2**31:
        raise StateTampered("the state's last tokens are out of range; send it as it was returned")
    try:
        texts = word.decode(), held_back.decode()
    except UnicodeDecodeError:
        raise StateTampered("the state's text is not UTF-8; send it as it was returned") from None
    return Snapshot(
        row=numbers[:floats].astype(np.float32),  # a copy: the engine may write to its states
        steps=steps,
        pending=pending,
        seed=seed,
        choice=choice,
        window=tuple(window.tolist()),
        word=texts[0],
        utf8=utf8,
        held_back=texts[1],
        constraint=constraint,
        consumed=consumed,
        probabilities=numbers[floats:].astype(np.float32),
    )


def _array(data: bytes, dtype: str, count: int, offset: int) -> tuple[NDArray[np.generic], int]:
    """`count` values at `offset`, without copying, and the offset after them."""
    values = np.frombuffer(data, dtype=dtype, count=count, offset=offset)
    return values, offset + values.nbytes
