"""Choose the threads of a step: a small step ends before a second thread would help."""

import torch

from sruserve.model.machine import usable_cores

_SMALL_SECONDS = 1e-3  # shorter steps leave the other cores to the HTTP edge
_FLOPS = 150e9  # per second and core in float32; twice that in bfloat16
_BYTES = 30e9  # of weights that one core reads per second


class ThreadPolicy:
    """Sets torch's thread count for the calling thread, step by step.

    weights: that each row is multiplied by. max_threads: for large steps; 0 is one per usable core.
    """

    def __init__(self, weights: int, dtype: torch.dtype, max_threads: int) -> None:
        self._max_threads = max_threads or usable_cores()
        size = dtype.itemsize
        self._row_seconds = weights * 2 / (_FLOPS * 4 / size)
        self._min_seconds = weights * size / _BYTES

    def is_small(self, rows: int) -> bool:
        """Whether a step of `rows` rows should take less than a millisecond of one core."""
        return max(rows * self._row_seconds, self._min_seconds) < _SMALL_SECONDS

    def apply(self, rows: int) -> None:
        """Set the threads for a step of `rows` rows. Results do not depend on their number."""
        threads = 1 if self.is_small(rows) else self._max_threads
        if threads != torch.get_num_threads():  # which each thread has its own of
            torch.set_num_threads(threads)
