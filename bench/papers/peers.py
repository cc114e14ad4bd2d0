"""The papers' baselines as anybody writes them in torch, with the weights of our networks."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.papers.systems import Sequences, finished


def lstm(
    tensors: Mapping[str, Tensor], device: torch.device, sequences: Sequences, carries: bool
) -> Callable[[], Tensor]:
    """Return a call of an LSTM with an embedding and a linear head, over whole sequences.

    tensors: as in a model folder. The call returns the scores of the last steps, (batch, outputs).
    carries: from the states of the call before, not from zeros.
    """
    own = {k.removeprefix("rnn."): v for k, v in tensors.items() if k.startswith("rnn.")}
    layers = sum(name.startswith("weight_hh_l") for name in own)
    hidden, width = own["weight_hh_l0"].shape[1], own["weight_ih_l0"].shape[1]
    module = nn.LSTM(width, hidden, layers, batch_first=True)
    module.load_state_dict(own)
    module.to(device).eval()
    table, weight, bias = _of_the_edge(tensors, device)
    state: tuple[Tensor, Tensor] | None = None

    @torch.inference_mode()
    def call() -> Tensor:
        nonlocal state
        x = F.embedding(sequences.inputs.to(device), table)
        h, end = module(x, state)
        if carries:
            state = end
        return finished(F.linear(h[:, -1], weight, bias))

    return call


def cnn(
    tensors: Mapping[str, Tensor], device: torch.device, sequences: Sequences
) -> Callable[[], Tensor]:
    """Return a call of Kim's network over whole sentences: its scores, (batch, outputs)."""
    table, weight, bias = _of_the_edge(tensors, device)
    width = table.shape[1]
    filters = []
    for number in range(sum(name.endswith(".bias") for name in tensors) - 1):
        taps = tensors[f"rnn.convs.{number}.weight"]
        biases = tensors[f"rnn.convs.{number}.bias"].to(device)
        by_filter = taps.view(-1, len(biases), width).permute(1, 2, 0).contiguous()
        filters.append((by_filter.to(device), biases))

    @torch.inference_mode()
    def call() -> Tensor:
        x = F.embedding(sequences.inputs.to(device), table).transpose(1, 2)
        largest = [F.relu(F.conv1d(x, *each)).amax(2) for each in filters]
        return finished(F.linear(torch.cat(largest, 1), weight, bias))

    return call


def _of_the_edge(
    tensors: Mapping[str, Tensor], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the embeddings, and the head's weight and bias."""
    table, weight, bias = (
        tensors[name].to(device) for name in ("embedding.weight", "output.weight", "output.bias")
    )
    return table, weight, bias
