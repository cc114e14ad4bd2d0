"""Seeds of samplers."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from sruserve.server import seeds
from sruserve.server.seeds import new_seed, random_bytes

FORKS = """
import os
from sruserve.server.seeds import random_bytes
random_bytes()
child = os.fork()
if child:
    os.waitpid(child, 0)
print(random_bytes().hex(), flush=True)
"""


def test_seeds_are_numbers_of_63_bits_that_fill_their_range() -> None:
    seeds = [new_seed() for _ in range(10_000)]
    assert min(seeds) >= 0
    assert 2**62 < max(seeds) < 2**63
    assert all(any(seed >> bit & 1 for seed in seeds) for bit in range(63))


def test_no_seed_is_given_out_twice_whatever_the_number_of_threads() -> None:
    with ThreadPoolExecutor(8) as pool:
        seeds = [seed for part in pool.map(lambda _: _some(), range(64)) for seed in part]
    assert len(set(seeds)) == len(seeds)


def test_seeds_that_are_ready_are_few_whatever_the_number_of_threads() -> None:
    seeds._seeds.clear()
    fetched = Barrier(2, timeout=60)

    def together(size: int) -> bytes:
        fetched.wait()
        return os.urandom(size)

    with ThreadPoolExecutor(2) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(seeds, "urandom", together)
        for _ in pool.map(lambda _: new_seed(), range(2)):
            pass
    for _ in range(2_000):
        new_seed()
        random_bytes()
        assert len(seeds._seeds) < 512
        assert len(seeds._byte_strings) < 256


def test_bytes_are_16_that_no_thread_gets_twice() -> None:
    def some(_: int) -> list[bytes]:
        return [random_bytes() for _ in range(500)]

    with ThreadPoolExecutor(8) as pool:
        chunks = [each for part in pool.map(some, range(64)) for each in part]
    assert {len(each) for each in chunks} == {16}
    assert len(set(chunks)) == len(chunks)


def test_a_forked_process_has_numbers_of_its_own() -> None:
    """In an interpreter without threads, since a fork has none of them."""
    done = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=True)
    child, parent = done.stdout.splitlines()
    assert len(child) == len(parent) == 32
    assert child != parent


def _some() -> list[int]:
    return [new_seed() for _ in range(500)]
