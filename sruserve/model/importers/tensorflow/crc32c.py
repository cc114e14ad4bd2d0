"""CRC-32C, of hundreds of megabytes in a second."""

import numpy as np
from numpy.typing import NDArray

_Words = NDArray[np.uint32]

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, with its bits reversed
_LANES = 1 << 16


def masked_crc32c(data: bytes) -> int:
    """Return the checksum as tables and bundles store it: rotated by 15 bits, plus a constant."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """Return the checksum of `data`."""
    crc = 0xFFFFFFFF
    steps = len(data) // _LANES
    if steps > 8:  # all lanes at once: a checksum is linear, so those of its parts can be added
        lanes = np.frombuffer(data, np.uint8, steps * _LANES).reshape(_LANES, steps).T
        parts = np.zeros(_LANES, np.uint32)
        for column in np.ascontiguousarray(lanes):
            parts = _TABLE[(parts ^ column) & 0xFF] ^ (parts >> 8)
        moved = _after_zeros(steps)
        for part in parts.tolist():
            crc = part ^ _move(moved, crc)
    table = _TABLE.tolist()
    for byte in memoryview(data)[steps * _LANES if steps > 8 else 0 :]:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _table() -> _Words:
    words = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        words = np.where(words & 1, (words >> 1) ^ np.uint32(_POLYNOMIAL), words >> 1)
    return words.astype(np.uint32)


_TABLE = _table()


def _after_zeros(count: int) -> list[list[int]]:
    """Return for each byte of a checksum, and each of its values, what `count` zeros make of it."""
    values = np.arange(256, dtype=np.uint32)
    words = np.stack([values << np.uint32(8 * byte) for byte in range(4)])
    for _ in range(count):
        words = _TABLE[words & 0xFF] ^ (words >> 8)
    moved: list[list[int]] = words.tolist()
    return moved


def _move(moved: list[list[int]], crc: int) -> int:
    return (
        moved[0][crc & 0xFF]
        ^ moved[1][crc >> 8 & 0xFF]
        ^ moved[2][crc >> 16 & 0xFF]
        ^ moved[3][crc >> 24]
    )
