"""The Triton kernels on the CPU: what runs under `TRITON_INTERPRET=1`, in its own process."""

from tests.interpreter import INTERPRETED, poisoned_outputs, prepared_language, quiet_numpy

__all__ = ["poisoned_outputs", "prepared_language", "quiet_numpy"]

collect_ignore_glob = [] if INTERPRETED else ["test_*.py"]
