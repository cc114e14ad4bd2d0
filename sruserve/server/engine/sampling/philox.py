"""Philox4x32-10 (Salmon et al. 2011): a random number is a function of key and counter alone."""

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
Words = NDArray[np.uint64]


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[int, int]) -> tuple[Words, ...]:
    """Ten rounds over arrays of 32-bit words (held in uint64), element by element."""
    c0, c1, c2, c3 = counter
    for index in range(10):
        k0, k1 = (np.uint64((k + index * w) & 0xFFFFFFFF) for k, w in zip(key, _WEYL, strict=True))
        left, right = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (right >> _HALF) ^ c1 ^ k0, right & _LOW
        c2, c3 = (left >> _HALF) ^ c3 ^ k1, left & _LOW
    return c0, c1, c2, c3


def uniforms(seed: int, choice: int, position: int, count: int) -> NDArray[np.float64]:
    """Return uniform numbers in [0, 1), 53 bits each, for `count` positions of one sequence.

    seed: 64 bits, the key. choice: 32 bits. position: of the first token, below 2**63.
    """
    positions = np.arange(position, position + count, dtype=np.uint64)
    zero = np.zeros(count, np.uint64)
    counter = (positions & _LOW, positions >> _HALF, zero + np.uint64(choice & 0xFFFFFFFF), zero)
    high, low, _, _ = philox(counter, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF))
    bits = (high >> np.uint64(5)) << np.uint64(26) | (low >> np.uint64(6))
    return bits.astype(np.float64) * 2.0**-53
