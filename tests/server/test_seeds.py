"""Seeds of samplers."""

from concurrent.futures import ThreadPoolExecutor

from sruserve.server import seeds
from sruserve.server.seeds import new_seed


def test_seeds_are_numbers_of_63_bits_that_fill_their_range() -> None:
    many = [new_seed() for _ in range(10_000)]
    assert min(many) >= 0
    assert 2**62 < max(many) < 2**63
    assert all(any(seed >> bit & 1 for seed in many) for bit in range(63))


def test_no_seed_is_given_out_twice_whatever_the_number_of_threads() -> None:
    with ThreadPoolExecutor(8) as pool:
        many = [seed for part in pool.map(lambda _: _some(), range(64)) for seed in part]
    assert len(set(many)) == len(many)


def test_seeds_that_are_ready_are_few() -> None:
    for _ in range(2_000):
        new_seed()
        assert len(seeds._ready) < 512


def _some() -> list[int]:
    return [new_seed() for _ in range(500)]
