"""The same weights in `sru` 2.6.0 and in our network, and proof that both compute the same."""

import os
import sys
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.model.config import ModelConfig, architecture
from sruserve.model.importers.sru import read
from sruserve.model.network import Network

TOLERANCE = 1e-5
_SEED = 1


class Disagreement(Exception):
    """Ours and the peer give different outputs, so their times must not be compared."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A stack and its batch, as (L, B, d, layers)."""

    steps: int
    batch: int
    width: int
    layers: int

    def __str__(self) -> str:
        return f"({self.steps}, {self.batch}, {self.width}, {self.layers})"


@cache
def peer_library() -> Any:
    """`sru`, which compiles its CPU kernel when it is first imported."""
    # It looks for ninja, which is beside the interpreter, on the path.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no CUDA
        import sru
    return sru


class Twins:
    """A stack with random weights, theirs and ours.

    x: (L, B, d), float32, for theirs; `packed`: (B * L, d), the same for ours.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        torch.manual_seed(_SEED)
        self.theirs = peer_library().SRU(shape.width, shape.width, num_layers=shape.layers).eval()
        for name, parameter in self.theirs.named_parameters():
            if name.endswith(("weight_c", "bias")):  # zeros would hide a mistake
                torch.nn.init.normal_(parameter, std=0.3)
        found = read(self.theirs.state_dict(), {}, "encode")
        self._tensors, rnn = found.tensors, found.rnn
        self._config = ModelConfig(
            architectures=(architecture(rnn, "encode"),),
            task="encode",
            dtype="float32",
            vocab_size=None,
            rnn=rnn,
        )
        self.x = torch.randn(shape.steps, shape.batch, shape.width)
        self.packed = self.x.transpose(0, 1).reshape(-1, shape.width).contiguous()

    def network(self, dtype: torch.dtype) -> Network:
        """Ours, computing in `dtype`."""
        network = Network(self._config, self._tensors, dtype)
        network.warm_up()
        return network

    def batch(self, network: Network, begin: bool = True) -> RaggedBatch:
        """All sequences; begin: from zeros in every call, else on from where the last ended."""
        rows = torch.arange(self.shape.batch)
        offsets = torch.arange(self.shape.batch + 1) * self.shape.steps
        source = torch.full_like(rows, -1) if begin else rows
        return RaggedBatch(offsets, network.layout.allocate(self.shape.batch), source, rows)

    def check(self) -> float:
        """The largest difference of outputs and end states in float32; raises `Disagreement`."""
        network = self.network(torch.float32)
        batch = self.batch(network)
        ours = network.hidden(self.packed, batch)
        with torch.inference_mode():
            h, c = self.theirs(self.x)
        theirs: Tensor = h.transpose(0, 1).reshape(ours.shape)
        states = c.transpose(0, 1).reshape(batch.states.shape)
        largest = max(_difference(ours, theirs), _difference(batch.states, states))
        if not largest <= TOLERANCE:  # NaN is no agreement
            raise Disagreement(
                f"at {self.shape} ours and sru 2.6.0 differ by {largest:.3g}, more than "
                f"{TOLERANCE:g}: no time is taken before they agree"
            )
        return largest


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())
