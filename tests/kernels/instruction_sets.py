"""The instruction sets of this machine, for which the compiled kernels have code."""

import pytest

import sruserve.kernels.cpu.library as cpu


def use(name: str) -> bool:
    assert cpu._library is not None
    return bool(cpu._library.sru_use_instruction_set(name.encode()) == 0)


BEST = cpu.instruction_set()
HERE = [name for name in ("baseline", "avx2", "avx512") if use(name)]  # this machine has
use(BEST)
EACH_SET = pytest.mark.usefixtures("instruction_set")
