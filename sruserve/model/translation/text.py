"""The vocabulary of one side of a translation system: texts to ids with special ids, and back."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sruserve.model.text.codec import Codec, pieces_after
from sruserve.model.translation.config import SideConfig


class SideText:
    """Encodes and decodes the texts of one side.

    bos, eos, pad, unk: see `SideConfig`. size: number of ids.
    """

    def __init__(self, codec: Codec, side: SideConfig) -> None:
        self.codec, self.size = codec, side.vocab_size
        self.bos, self.eos, self.pad, self.unk = side.bos, side.eos, side.pad, side.unk
        self.special = frozenset(side.special)
        self._before = [] if side.bos is None else [side.bos]
        self._behind = [] if side.eos is None else [side.eos]

    def encode(self, text: str) -> Tensor:
        """Return a text's ids with bos and eos around them, (ids), int64; raises `TextError`."""
        return self.framed(self.codec.encode(text)[0])

    def framed(self, ids: NDArray[np.int64], *, begins: bool = True, ends: bool = True) -> Tensor:
        """Return a text's own ids with bos and eos around them, (ids), int64.

        begins, ends: whether the text does so with these ids; else bos or eos is left out.
        """
        before, after = self._before if begins else [], self._behind if ends else []
        return torch.from_numpy(np.concatenate([before, ids, after]).astype(np.int64))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, without the special ones.

        A space before the first word is left out; bytes that are no UTF-8 become U+FFFD.
        """
        own = [i for i in ids if i not in self.special]
        pieces = pieces_after(self.codec, -1)
        return b"".join([pieces[i] for i in own]).decode(errors="replace").removeprefix(" ")
