"""Turn a network's scores into integer frequencies, alike for equal bits of the scores.

Only operations that IEEE 754 rounds exactly, and integers: no exponential of a library, whose last
bits depend on its version, on the processor and on a number's place in a vector.
"""

from math import isqrt

import numpy as np
from numpy.typing import NDArray

from sruserve.compression.errors import UnfitModelError

Integers = NDArray[np.int64]
Scores = NDArray[np.float32]

_TOTAL = 1 << 32  # of a row's frequencies, to rounding
_FLOOR_SHARE = 4096  # one part of these is spread evenly: the worst symbol costs 12 bits more
_STEPS = 4096  # of an exponent between two powers of two
_WEIGHT_BITS = 31
_UNITS_PER_NAT = _STEPS * 1.4426950408889634  # log2(e)


def _powers() -> Integers:
    """Return 2^(31 - i / 4096) for each i, rounded; computed in integers of 128 bits."""
    bits = 128
    root = 1 << (bits - 1)  # a half
    for _ in range(_STEPS.bit_length() - 1):
        root = isqrt(root << bits)
    power, powers, spare = 1 << bits, [], bits - _WEIGHT_BITS
    for _ in range(_STEPS):
        powers.append(power + (1 << (spare - 1)) >> spare)
        power = power * root >> bits
    return np.array(powers, np.int64)


_POWERS = _powers()


def cumulative_frequencies(scores: Scores) -> Integers:
    """Return each row's frequencies, summed: (rows, symbols + 1), int64, from 0 to the row's total.

    scores: (rows, symbols), float32, natural logarithms up to a constant of the row. Every symbol
    has a frequency of at least 1, nearly in proportion to exp(score). A row depends on no other.

    Raises `UnfitModelError` for NaN or infinity; a score of minus infinity is the smallest.
    """
    rows, symbols = scores.shape
    exact = scores.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinity minus infinity is looked for below
        below = exact.max(1, keepdims=True) - exact
    if np.isnan(below).any():
        raise UnfitModelError(
            "the model's scores are not finite numbers, so it cannot compress: use another model"
        )
    units = np.rint(np.minimum(below * _UNITS_PER_NAT, 32.0 * _STEPS)).astype(np.int64)
    weights = _POWERS[units % _STEPS] >> units // _STEPS
    floor = max(1, _TOTAL // _FLOOR_SHARE // symbols)
    scale = (_TOTAL - floor * symbols) / weights.sum(1, keepdims=True).astype(np.float64)
    cumulative = np.zeros((rows, symbols + 1), np.int64)
    np.cumsum((weights * scale).astype(np.int64) + floor, 1, out=cumulative[:, 1:])
    return cumulative
