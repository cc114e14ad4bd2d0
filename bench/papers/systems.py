"""Networks of a paper's sizes with random weights, and the batches that they are measured on."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.model.cells import FAMILIES
from sruserve.model.config import ModelConfig, architecture
from sruserve.model.names import Task
from sruserve.model.network import Network, network_shapes

_SEED = 1
_SCALE = 0.04  # of random weights: deep stacks stay finite


@dataclass(frozen=True, slots=True)
class System:
    """A family of layers at one size.

    stack: the fields of the family's config. vocabulary: 0 where the inputs are features.
    labels: number of classes, for task classify.
    """

    family: str
    task: Task
    stack: dict[str, Any]
    vocabulary: int = 0
    labels: int = 0

    def config(self) -> ModelConfig:
        rnn = FAMILIES[self.family].model_validate(self.stack)
        return ModelConfig(
            architectures=(architecture(rnn, self.task),),
            model_type=self.family,
            task=self.task,
            vocab_size=self.vocabulary or None,
            id2label={number: str(number) for number in range(self.labels)},
            rnn=rnn,
        )

    def parameters(self) -> int:
        """Number of weights, without the embeddings, as the papers count them."""
        shapes = network_shapes(self.config())
        return sum(prod(s) for name, s in shapes.items() if not name.startswith("embedding."))

    def tensors(self) -> dict[str, Tensor]:
        """Draw its weights: the same ones in each call."""
        generator = torch.Generator().manual_seed(_SEED)
        shapes = network_shapes(self.config())
        return {k: torch.randn(s, generator=generator) * _SCALE for k, s in shapes.items()}

    def network(self, device: torch.device) -> Network:
        network = Network(self.config(), self.tensors(), torch.float32, device)
        network.warm_up()
        return network


@dataclass(frozen=True, slots=True)
class Sequences:
    """A batch of equal lengths. inputs: (batch, steps), int64 ids, or (batch, steps, features)."""

    inputs: Tensor

    @property
    def batch(self) -> int:
        return self.inputs.shape[0]

    @property
    def steps(self) -> int:
        return self.inputs.shape[1]


def ids(batch: int, steps: int, vocabulary: int) -> Sequences:
    generator = torch.Generator().manual_seed(_SEED)
    return Sequences(torch.randint(vocabulary, (batch, steps), generator=generator))


def features(batch: int, steps: int, width: int) -> Sequences:
    generator = torch.Generator().manual_seed(_SEED)
    return Sequences(torch.randn(batch, steps, width, generator=generator))


def run(network: Network, sequences: Sequences, last: bool, carries: bool) -> Callable[[], Tensor]:
    """Return a call of a network over a batch that returns its scores, or its outputs.

    last: of each sequence's last step alone. carries: from the states of the call before, not from
    zeros, so that a call of one step is a step of decoding.
    """
    count, steps = sequences.batch, sequences.steps
    rows = torch.arange(count)
    states = network.layout.allocate(count, network.device)
    source = rows if carries else torch.full_like(rows, -1)
    batch = RaggedBatch(torch.arange(count + 1) * steps, states, source, rows)
    output_rows = torch.arange(1, count + 1) * steps - 1 if last else None
    packed = sequences.inputs.flatten(0, 1).contiguous()
    has_head = network.config.outputs is not None

    def call() -> Tensor:
        hidden = network.hidden(packed, batch, output_rows)
        return finished(network.logits(hidden) if has_head else hidden)

    return call


def finished(result: Tensor) -> Tensor:
    """Return a result when its device has computed it."""
    if result.is_cuda:
        torch.cuda.current_stream().synchronize()
    return result
