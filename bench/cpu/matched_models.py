"""The same weights in `sru` 2.6.0 and in our network, and a check that both compute the same."""

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
from sruserve.model.quantized import restored_tensors, stored_tensors

TOLERANCE = 1e-5
_SEED = 1


class Disagreement(Exception):
    """Our outputs and the peer's differ, so their times must not be compared."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a stack and its batch: (L, B, d, layers)."""

    steps: int
    batch: int
    width: int
    layers: int

    def __str__(self) -> str:
        return f"({self.steps}, {self.batch}, {self.width}, {self.layers})"


@cache
def peer_library() -> Any:
    """Import `sru`, which compiles its CPU kernel at the first import."""
    # `sru` looks for ninja on the path, and ninja is in the interpreter's folder.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `sru` warns that there is no CUDA
        import sru
    return sru


class MatchedModels:
    """A stack with random weights, as the peer's module and as our network.

    x: (L, B, d), float32, the peer's input. packed: (B * L, d), the same numbers for ours.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        torch.manual_seed(_SEED)
        self.theirs = peer_library().SRU(shape.width, shape.width, num_layers=shape.layers).eval()
        for name, parameter in self.theirs.named_parameters():
            if name.endswith(("weight_c", "bias")):  # their default of zeros would hide a mistake
                torch.nn.init.normal_(parameter, std=0.3)
        imported = read(self.theirs.state_dict(), {}, "encode")
        self._tensors, rnn = imported.tensors, imported.rnn
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
        """Return our network, with compute dtype `dtype`."""
        network = Network(self._config, self._tensors, dtype)
        network.warm_up()
        return network

    def int8_network(self) -> Network:
        """Return our network with int8 weights."""
        config = self._config.model_copy(update={"weights": "int8"})
        stored = stored_tensors(config, self._tensors)
        network = Network(config, restored_tensors(config, stored, "sru"), torch.float32)
        network.warm_up()
        return network

    def batch(self, network: Network, begin: bool = True) -> RaggedBatch:
        """Return a batch of all sequences. begin: start from zeros, not from the end states."""
        rows = torch.arange(self.shape.batch)
        offsets = torch.arange(self.shape.batch + 1) * self.shape.steps
        source = torch.full_like(rows, -1) if begin else rows
        return RaggedBatch(offsets, network.layout.allocate(self.shape.batch), source, rows)

    def check(self) -> float:
        """Return the largest difference of outputs and end states in float32.

        Raises `Disagreement` if it exceeds `TOLERANCE`.
        """
        network = self.network(torch.float32)
        batch = self.batch(network)
        ours = network.hidden(self.packed, batch)
        with torch.inference_mode():
            h, c = self.theirs(self.x)
        theirs: Tensor = h.transpose(0, 1).reshape(ours.shape)
        states = c.transpose(0, 1).reshape(batch.states.shape)
        largest = max(_difference(ours, theirs), _difference(batch.states, states))
        if not largest <= TOLERANCE:  # also true for NaN
            raise Disagreement(
                f"at {self.shape} ours and sru 2.6.0 differ by {largest:.3g}; the limit is "
                f"{TOLERANCE:g}: nothing is measured until they agree"
            )
        return largest


def _difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max())
