"""The norms of trained layers. Each row is independent: its bits are the same in every batch."""

from dataclasses import dataclass
from enum import IntEnum
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from sruserve.kernels.candidates import Candidate, chosen
from sruserve.kernels.dispatch import uses_triton
from sruserve.kernels.triton.tiles import NORM_WIDTH

_SHARED_ROW = 32768  # numbers from which torch splits the sum of a single row among threads


class NormKind(IntEnum):
    """The norm's formula. Mean, std and var are those of a row, and biased unless noted."""

    LAYER = 0  # (x - mean) / sqrt(var + 1e-5): torch.nn.LayerNorm, and sru from 2.1.9 on
    UNBIASED = 1  # (x - mean) / sqrt(unbiased var + 1e-6), or x of one number: sru 2.0-2.1.7
    STD = 2  # (x - mean) / (std + 1e-6): sru 1.x
    RMS = 3  # x / sqrt(mean of x² + 1e-8), no bias: LRN's document and NLI models


_EPSILON = {NormKind.LAYER: 1e-5, NormKind.UNBIASED: 1e-6, NormKind.STD: 1e-6, NormKind.RMS: 1e-8}


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm with its affine map.

    weight: (n). bias: (n) or None. Both have the compute dtype.
    epsilon: what is added to the variance, or for STD to the deviation; -1: the kind's own.
    """

    weight: Tensor
    bias: Tensor | None
    kind: NormKind = NormKind.LAYER
    epsilon: float = -1.0

    def __post_init__(self) -> None:
        if self.epsilon < 0:
            object.__setattr__(self, "epsilon", _EPSILON[self.kind])

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize every row of x (rows, n); returns (rows, n), the dtype of x."""
        n = x.shape[1]
        if Candidate.TRITON_NORM in chosen and uses_triton(x.device) and n <= NORM_WIDTH:
            return self._in_triton(x)
        if x.shape[0] == 1 and n >= _SHARED_ROW and x.is_cpu:
            return self(torch.cat((x, x)))[:1]
        if self.kind is NormKind.LAYER:
            return F.layer_norm(x, (n,), self.weight, self.bias, self.epsilon)
        if self.kind is NormKind.RMS:
            return F.rms_norm(x, (n,), self.weight, eps=self.epsilon)
        if self.kind is NormKind.STD:
            return self._by_deviation(x)
        norm = self.biased()
        return x if norm is None else F.layer_norm(x, (n,), norm.weight, norm.bias, norm.epsilon)

    def biased(self) -> "Norm | None":
        """The same norm with a biased variance; None if it changes nothing."""
        n = len(self.weight)
        if self.kind is not NormKind.UNBIASED:
            return self
        if n == 1:
            return None
        # unbiased var + eps = (var + eps * share) / share
        share = (n - 1) / n
        return Norm(self.weight * sqrt(share), self.bias, NormKind.LAYER, self.epsilon * share)

    def _in_triton(self, x: Tensor) -> Tensor:
        from sruserve.kernels.triton.norm import triton_norm

        norm = self.biased()
        if norm is None:
            return x
        return triton_norm(x, norm.weight, norm.bias, int(norm.kind), norm.epsilon)

    def _by_deviation(self, x: Tensor) -> Tensor:
        """Use the 1 / std that torch returns: 1 / (std + eps) = 1 / std / (1 + eps / std)."""
        # 1e-30 keeps 1 / std finite; torch adds it under the square root.
        normed, _, inverse = torch.native_layer_norm(x.float(), (x.shape[1],), None, None, 1e-30)
        normed = normed / (1 + self.epsilon * inverse) * self.weight
        return (normed if self.bias is None else normed + self.bias).to(x.dtype)
