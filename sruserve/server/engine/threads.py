"""Choose the threads of a step: a small step ends before a second thread would help."""

import torch

from sruserve.model.machine import usable_cores

_SMALL_SECONDS = 1e-3  # shorter steps leave the other cores to the HTTP edge
_FLOPS = 150e9  # per second and core in float32; twice that in bfloat16
_BYTES = 30e9  # of weights that one core reads per second


class ThreadPolicy:
    """Sets torch's thread count for the calling thread, step by step.

    weights: that each row is multiplied by. max_threads: for large steps; 0 is one per usable core.
    small_rows: rows that take less than a millisecond of one core.
    """

    def __init__(self, weights: int, dtype: torch.dtype, max_threads: int) -> None:
        self._max_threads = max_threads or usable_cores()
        size = dtype.itemsize
        row_seconds = max(1, weights) * 2 / (_FLOPS * 4 / size)
        is_small = weights * size / _BYTES < _SMALL_SECONDS  # to read all weights
        self.small_rows = int(_SMALL_SECONDS / row_seconds) if is_small else 0

    def apply(self, rows: int) -> None:
        """Set the threads for a step of `rows` rows. Results do not depend on their number."""
        threads = 1 if rows <= self.small_rows else self._max_threads
        if threads != torch.get_num_threads():  # which each thread has its own of
            torch.set_num_threads(threads)
