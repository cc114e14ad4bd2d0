"""The Triton kernels as compiled, with no GPU near: pipelined, without spills, within the chip."""

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

SHARED_BYTES = {80: 166_912, 90: 232_448}  # CUDA programming guide: the most of one block
KERNELS = {
    aot.key(wanted, capability): (wanted, capability)
    for wanted in aot.configurations()
    for capability in wanted.capabilities
}
Facts = dict[str, Any]


@pytest.fixture(scope="module")
def outputs() -> Iterator[dict[str, Future[str]]]:
    """What `tests.kernels.aot` prints under each Triton there is, both at work side by side.

    Triton keeps what it has compiled, by its own version, the source and the options.
    """
    # Without a folder of its own, the newest is the one that is installed.
    folders = {
        "newest": os.environ.get("NEWEST_TRITON", ""),
        "oldest": os.environ.get("OLDEST_TRITON"),
    }

    def compile_all(folder: str) -> str:
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(folder).absolute()) if folder else "",
        }
        done = subprocess.run(
            [sys.executable, "-m", "tests.kernels.aot"],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    with ThreadPoolExecutor(2) as pool:
        yield {
            name: pool.submit(compile_all, folder)
            for name, folder in folders.items()
            if folder is not None
        }


@pytest.fixture(scope="module", params=["newest", "oldest"])
def compiled(request: pytest.FixtureRequest, outputs: dict[str, Future[str]]) -> dict[str, Facts]:
    """The facts of every kernel, under one Triton."""
    if request.param not in outputs:
        pytest.skip("OLDEST_TRITON names no folder that holds the oldest supported Triton")
    printed = json.loads(outputs[request.param].result())
    folder = os.environ.get(f"{request.param.upper()}_TRITON", "")
    assert folder.endswith(printed["triton"]) or not folder, "another Triton was asked for"
    kernels: dict[str, Facts] = printed["kernels"]
    return kernels


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_compiles_to_what_its_tile_promises(name: str, compiled: dict[str, Facts]) -> None:
    wanted, capability = KERNELS[name]
    facts = compiled[name]
    assert facts["async_copies"] >= wanted.async_copies
    assert facts["spill_bytes"] == 0
    assert facts["registers"] <= wanted.registers
    assert facts["barriers"] <= wanted.barriers
    assert facts["shared_bytes"] <= SHARED_BYTES[capability]
    assert not facts["lacks"]


@pytest.mark.parametrize("wanted", list(aot.configurations()), ids=lambda wanted: wanted.name)
def test_no_run_time_number_makes_a_kernel_compile_again(wanted: aot.Configuration) -> None:
    fixed = {parameter.name for parameter in wanted.kernel.params if parameter.do_not_specialize}
    numbers = {name for name, kind in wanted.signature.items() if kind.startswith("i")}
    assert numbers - wanted.constants.keys() <= fixed
