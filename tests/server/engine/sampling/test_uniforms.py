"""Random numbers: Philox against the known answers of its authors' library, Random123."""

import numpy as np
import pytest

from sruserve.kernels.reference.philox import philox, random_bits
from sruserve.server.engine.sampling.uniforms import uniforms

KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_published_numbers(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    assert philox(counter, key) == expected
    words = [np.array([word], np.uint64) for word in (*counter, *key)]
    arrays = philox((words[0], words[1], words[2], words[3]), (words[4], words[5]))
    assert tuple(int(word[0]) for word in arrays) == expected


def test_a_number_depends_on_seed_choice_and_position_alone() -> None:
    whole = uniforms(9, 2, 0, 300)
    assert (uniforms(9, 2, 130, 50) == whole[130:180]).all()
    assert (uniforms(9, 3, 0, 300) != whole).all()
    assert (uniforms(10, 2, 0, 300) != whole).all()
    assert (uniforms(9 + 2**63, 2, 0, 300) != whole).all()


def test_many_sequences_get_at_once_what_each_gets_alone() -> None:
    seeds, choices, positions = [9, 2**64 - 1, 2**40], [2, 0, 7], [0, 130, 2**33]
    together = uniforms(np.array(seeds, np.uint64), choices, positions, 5)
    alone = [uniforms(*key, 5) for key in zip(seeds, choices, positions, strict=True)]
    assert (together == np.stack(alone, 1)).all()
    keys = zip(seeds, choices, positions, strict=True)
    by_integers = [random_bits(seed, choice, at + 4) * 2.0**-53 for seed, choice, at in keys]
    assert together[4].tolist() == by_integers


def test_numbers_are_uniform() -> None:
    drawn = uniforms(1, 0, 0, 200_000)
    assert 0 <= drawn.min() < drawn.max() < 1
    counts, _ = np.histogram(drawn, 50, (0, 1))
    chi_squared = ((counts - 4000.0) ** 2 / 4000).sum()
    assert chi_squared < 90  # 49 degrees of freedom: one in 3,000
