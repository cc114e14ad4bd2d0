"""The instruction sets that this machine has, for the tests of the compiled kernel."""

import pytest

import sruserve.kernels.cpu.library as cpu


def use(name: str) -> bool:
    """Use an instruction set from now on; returns whether this machine has it."""
    assert cpu._library is not None
    return bool(cpu._library.sru_use_instruction_set(name.encode()) == 0)


BEST = cpu.instruction_set()
HERE = [name for name in ("baseline", "avx2", "avx512") if use(name)]
use(BEST)

EACH_SET = pytest.mark.usefixtures("instruction_set")  # the fixture of conftest.py
