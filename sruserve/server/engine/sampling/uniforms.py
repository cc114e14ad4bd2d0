"""The random numbers of sequences: each is a function of seed, choice and position alone."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sruserve.kernels.reference.philox import random_bits


def uniforms(
    seed: ArrayLike, choice: ArrayLike, position: ArrayLike, count: int
) -> NDArray[np.float64]:
    """Return uniform numbers in [0, 1), 53 bits each, for `count` positions of each sequence.

    seed: 64 bits, the key. choice: 32 bits. position: of the first number, below 2**63. Each is a
    number, or an array (sequences).

    Returns (count), or (count, sequences) for arrays.
    """
    keys, choices = np.asarray(seed, np.uint64), np.asarray(choice, np.uint64)
    first = np.asarray(position, np.uint64)
    positions = np.arange(count, dtype=np.uint64).reshape(count, *[1] * first.ndim) + first
    bits: NDArray[np.uint64] = random_bits(keys, choices, positions)
    return bits.astype(np.float64) * 2.0**-53
