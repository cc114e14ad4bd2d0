"""How many threads a step gets: a small one is done before a second thread would help."""

import os

import torch

from sruserve.model.network import Network

_SMALL_SECONDS = 1e-3  # below this the other cores are worth more to the HTTP edge
_FLOPS = 150e9  # of one core in float32; twice that in bfloat16
_BYTES = 30e9  # per second that one core reads of weights


class Threads:
    """Sets torch's threads for the calling thread, step by step.

    most: for large steps; 0 takes the machine's cores.
    """

    def __init__(self, network: Network, most: int) -> None:
        self._most = most or os.cpu_count() or 1
        size = network.dtype.itemsize
        self._row_seconds = network.weights * 2 / (_FLOPS * 4 / size)
        self._least_seconds = network.weights * size / _BYTES
        self._now = 0

    def use(self, rows: int) -> None:
        """Choose for a step of `rows` rows. Results do not depend on it."""
        small = max(rows * self._row_seconds, self._least_seconds) < _SMALL_SECONDS
        wanted = 1 if small else self._most
        if wanted != self._now:
            torch.set_num_threads(wanted)
            self._now = wanted
