"""Tests of the Triton kernels on the CPU, under `TRITON_INTERPRET=1` in a separate process."""

from tests.interpreter import INTERPRETED, interpreter, poisoned_outputs, quiet_numpy

__all__ = ["interpreter", "poisoned_outputs", "quiet_numpy"]

collect_ignore_glob = [] if INTERPRETED else ["test_*.py"]
