"""Philox4x32-10 (Salmon et al. 2011): a random number is a function of key and counter alone."""

from typing import Any

_LOW = 0xFFFFFFFF


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Ten rounds over 32-bit words: integers, or arrays of uint64, element by element."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        left, right = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = (right >> 32) ^ c1 ^ k0, right & _LOW
        c2, c3 = (left >> 32) ^ c3 ^ k1, left & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return c0, c1, c2, c3


def random_bits(seed: Any, choice: Any, position: Any) -> Any:
    """53 random bits of a stream at a position; a uniform number is `bits * 2.0**-53`.

    seed: 64 bits, the key. choice: 32 bits. position: below 2**63. Integers, or arrays of uint64.
    """
    counter = (position & _LOW, position >> 32, choice & _LOW, choice & 0)
    high, low, _, _ = philox(counter, (seed & _LOW, seed >> 32))
    return (high >> 5) << 26 | (low >> 6)
