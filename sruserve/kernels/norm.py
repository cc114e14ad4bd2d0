"""The norms that trained layers have: each row for itself, with the same bits in any company."""

from dataclasses import dataclass
from enum import IntEnum
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

_SHARED_ROW = 32768  # numbers from which torch sums a lone row on several threads, in parts


class NormKind(IntEnum):
    """Which formula; mean, std and var are those of a row, biased unless said otherwise."""

    LAYER = 0  # (x - mean) / sqrt(var + 1e-5): torch.nn.LayerNorm, and sru from 2.1.9 on
    UNBIASED = 1  # (x - mean) / sqrt(unbiased var + 1e-6), or x of one number: sru 2.0-2.1.7
    STD = 2  # (x - mean) / (std + 1e-6): sru 1.x
    RMS = 3  # x / sqrt(mean of x² + 1e-8), no bias: LRN's document and inference models


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm with its affine map.

    weight: (n). bias: (n) or None. Both of the dtype that is computed in.
    """

    weight: Tensor
    bias: Tensor | None
    kind: NormKind = NormKind.LAYER

    def __call__(self, x: Tensor) -> Tensor:
        """Norm every row of x (rows, n); returns the dtype of x."""
        n = x.shape[1]
        if len(x) == 1 and n >= _SHARED_ROW and x.is_cpu:
            return self(torch.cat((x, x)))[:1]
        if self.kind is NormKind.LAYER:
            return F.layer_norm(x, (n,), self.weight, self.bias)
        if self.kind is NormKind.RMS:
            return F.rms_norm(x, (n,), self.weight, eps=1e-8)
        if self.kind is NormKind.STD:
            return self._by_deviation(x)
        if n == 1:
            return x
        # unbiased var + eps = (var + eps * biased) / biased
        biased = (n - 1) / n
        return F.layer_norm(x, (n,), self.weight * sqrt(biased), self.bias, 1e-6 * biased)

    def _by_deviation(self, x: Tensor) -> Tensor:
        """1 / std comes with the normed row: 1 / (std + eps) = 1 / std / (1 + eps / std)."""
        # The least that keeps 1 / std finite: it stands under a square root.
        normed, _, inverse = torch.native_layer_norm(x.float(), (x.shape[1],), None, None, 1e-30)
        normed = normed / (1 + 1e-6 * inverse) * self.weight
        return (normed if self.bias is None else normed + self.bias).to(x.dtype)
