"""The recurrent encoders of a reader, and the embeddings that they read."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.kernels.devices import copy_to_device
from sruserve.model.cells.stack import StackConfig
from sruserve.model.config import ModelConfig
from sruserve.model.network import Network


def build_encoder(
    rnn: StackConfig,
    prefix: str,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
    device: torch.device,
    fast: bool,
) -> Network:
    """Build one of the two encoders, a network over features."""
    own = {
        f"rnn.{name.removeprefix(prefix)}": tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    config = ModelConfig(architectures=(), model_type=rnn.family, task="encode", rnn=rnn)
    return Network(config, own, dtype, device, fast)


def look_up(embedding: Callable[[Tensor], Tensor], rows: Tensor, device: torch.device) -> Tensor:
    """Return the embeddings of words, (rows, width), from rows (rows, 7) on the CPU."""
    return embedding(copy_to_device(rows[:, 0].to(torch.int64), device))


def encode(encoder: Network, x: Tensor, lengths: Tensor) -> Tensor:
    """Run an encoder over whole sequences that begin from zeros, (rows, width)."""
    offsets = torch.cat((lengths.new_zeros(1), lengths.cumsum(0)))
    nowhere = torch.full((len(lengths),), -1)
    states = encoder.layout.allocate(1, encoder.device)
    return encoder.hidden(x, RaggedBatch(offsets, states, nowhere, nowhere))
