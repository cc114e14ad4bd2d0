"""The compiled Triton kernels, without a GPU: pipelined, without spills, within a chip's limits."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton")

from tests.kernels import aot

SHARED_BYTES = {
    80: 166_912,
    90: 232_448,
    100: 232_448,
}  # CUDA programming guide: the most of one block
# The folders of other Tritons than the installed one, if there are any.
TRITONS = [os.environ[name] for name in ("NEWEST_TRITON", "OLDEST_TRITON") if name in os.environ]
SHARES = max(len(TRITONS), 1)
KERNELS = {aot.key(wanted, capability): (wanted, capability) for wanted, capability in aot.forms()}
COMPILED_BY = [
    {aot.key(*form) for form in aot.share_of_forms(share, SHARES)} for share in range(SHARES)
]
Facts = dict[str, Any]


@pytest.fixture(scope="module")
def compiled() -> Iterator[list[Future[dict[str, Facts]]]]:
    """The facts of every kernel, under one of the Tritons, all of which are at work side by side.

    They take the forms in turns: each kernel comes to each of them, for every capability. Triton
    keeps what it has compiled, by its own version, the source and the options.
    """

    def compile_share(share: int) -> dict[str, Facts]:
        folder = TRITONS[share] if TRITONS else ""
        done = subprocess.run(
            [sys.executable, "-m", "tests.kernels.aot", str(share), str(SHARES)],
            env={**os.environ, "PYTHONPATH": str(Path(folder).absolute()) if folder else ""},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        printed = json.loads(done.stdout)
        assert folder.endswith(printed["triton"]) or not folder, "another Triton was asked for"
        kernels: dict[str, Facts] = printed["kernels"]
        return kernels

    with ThreadPoolExecutor(SHARES) as pool:
        yield [pool.submit(compile_share, share) for share in range(SHARES)]


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_compiles_to_what_its_tile_promises(
    name: str, compiled: list[Future[dict[str, Facts]]]
) -> None:
    wanted, capability = KERNELS[name]
    by = [share for share in range(SHARES) if name in COMPILED_BY[share]]
    every = [compiled[share].result()[name] for share in by]
    assert len(every) == (SHARES if wanted.every_triton else 1)
    for facts in every:
        _check(wanted, capability, facts)


def _check(wanted: aot.Configuration, capability: int, facts: Facts) -> None:
    assert facts["async_copies"] >= wanted.async_copies
    assert facts["spill_bytes"] == 0
    assert facts["registers"] <= wanted.registers
    assert facts["barriers"] <= wanted.barriers
    assert facts["shared_bytes"] <= SHARED_BYTES[capability]
    assert not facts["lacks"]
    assert not wanted.sums_from_zero or facts["sums_from_others"] == 0


def test_every_kernel_comes_to_every_triton_for_every_capability() -> None:
    """Either in its form for one capability, or with another dtype, width or tile."""
    kinds = {(wanted.kernel.__name__, capability) for wanted, capability in KERNELS.values()}
    for share in range(2):
        mine = aot.share_of_forms(share, 2)
        assert {(wanted.kernel.__name__, capability) for wanted, capability in mine} == kinds


def test_every_candidate_is_compiled_for_every_capability_that_has_its_instructions() -> None:
    names = [name for name in KERNELS if name.startswith("candidate-")]
    for part in ("product", "step", "merged"):
        places = {name.rpartition("-")[2] for name in names if f"-{part}-" in name}
        assert places == {"sm80", "sm90", "sm100"}, part


@pytest.mark.parametrize("wanted", list(aot.configurations()), ids=lambda wanted: wanted.name)
def test_no_run_time_number_makes_a_kernel_compile_again(wanted: aot.Configuration) -> None:
    fixed = {parameter.name for parameter in wanted.kernel.params if parameter.do_not_specialize}
    numbers = {name for name, kind in wanted.signature.items() if kind.startswith("i")}
    assert numbers - wanted.constants.keys() <= fixed
