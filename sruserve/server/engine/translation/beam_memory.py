"""The memory of all beams: an arena of cache rows, and the bytes of everything beside it."""

import numpy as np
import torch
from numpy.typing import NDArray

from sruserve.model.translation.translator import Translator
from sruserve.server.engine.translation.needs import Needs

Slots = NDArray[np.int32]


class BeamMemory:
    """Gives each sentence the rows that its hypotheses may fill; hypotheses share them by forks.

    A row is addressed by its number alone, so that any free rows will do and nothing is moved.

    capacity: bytes of everything together. rows: (slots, cache_width), float32.
    """

    def __init__(self, translator: Translator, capacity: int) -> None:
        width = translator.cache_width
        slots = capacity // (4 * width) if width else 0
        self.capacity, self.used = capacity, 0
        self.rows = torch.empty(slots, width)
        self._free = np.arange(slots, dtype=np.int32)

    def reserve(self, needs: Needs) -> Slots:
        """The rows of a sentence, which must fit."""
        self.used += needs.nbytes
        slots, self._free = np.split(self._free, [needs.slots])
        return slots

    def release(self, needs: Needs, slots: Slots) -> None:
        """Take back what `reserve` gave."""
        self.used -= needs.nbytes
        self._free = np.concatenate([slots, self._free])
