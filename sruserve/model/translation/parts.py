"""What every translation system does around its layers: embeddings, scores, checks of inputs."""

from collections.abc import Iterator, Mapping, Sequence
from math import log

import torch
from torch import Tensor

from sruserve.kernels import LinearOp, RaggedBatch
from sruserve.model.cells.stack import Builder
from sruserve.model.heads.softmaxes import over_words


def check_sources(sources: Sequence[Tensor], size: int, max_source: int | None) -> None:
    """Raise ValueError for an empty source, one too long, or an id outside of `size` ids."""
    for source in sources:
        if not len(source):
            raise ValueError("a source has no ids; give it at least one")
        if max_source is not None and len(source) > max_source:
            raise ValueError(
                f"a source has {len(source):,} ids; this model reads {max_source:,}: shorten it"
            )
        if not 0 <= int(source.min()) <= int(source.max()) < size:
            raise ValueError(f"a source has an id that is not in the vocabulary of {size:,} ids")


def grouped(sources: Sequence[Tensor], rows: int) -> Iterator[Sequence[Tensor]]:
    """Yield adjacent sources of up to `rows` ids together, or one that is longer."""
    first = count = 0
    for number, source in enumerate(sources):
        if number > first and count + len(source) > rows:
            yield sources[first:number]
            first, count = number, 0
        count += len(source)
    if first < len(sources):
        yield sources[first:]


def packed(sources: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return sources end to end, (rows) int64, and where each begins, (sources + 1) int64."""
    return torch.cat(list(sources)), torch.tensor([0, *map(len, sources)]).cumsum(0)


def from_zeros(offsets: Tensor, width: int) -> RaggedBatch:
    """Return a batch of whole sequences, whose end states are rows of its states, in order."""
    count = len(offsets) - 1
    nowhere = torch.full((count,), -1)
    return RaggedBatch(offsets, torch.zeros(count, width), nowhere, torch.arange(count))


def split(rows: Tensor, offsets: Tensor) -> tuple[Tensor, ...]:
    """Return the rows of each sequence of a batch."""
    return torch.split_with_sizes(rows, offsets.diff().tolist())


def sinusoids(count: int, width: int) -> Tensor:
    """Return the encodings of positions, (count, width), float32 (Vaswani et al. 2017, 3.5).

    Sine and cosine take turns, and angles are rounded, as in OpenNMT-py and flambe.
    """
    position = torch.arange(count).float()[:, None]
    frequency = (torch.arange(0, width, 2).float() * -(log(10000.0) / width)).exp()
    table = torch.zeros(count, width)
    table[:, 0::2] = (position * frequency).sin()
    table[:, 1::2] = (position * frequency[: width // 2]).cos()
    return table


def linear(tensors: Mapping[str, Tensor], name: str, builder: Builder) -> LinearOp:
    """Pack the linear layer `name`, with its bias if it has one."""
    return builder.linear(tensors[f"{name}.weight"], tensors.get(f"{name}.bias"))


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names begin with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


class Output:
    """Scores of the target's ids, and their logarithms."""

    def __init__(self, tensors: Mapping[str, Tensor], tied: bool, builder: Builder) -> None:
        name = "target_embedding.weight" if tied else "output.weight"
        self.linear: LinearOp = builder.linear(tensors[name], tensors.get("output.bias"))

    def __call__(self, hidden: Tensor) -> Tensor:
        """Map rows (rows, width) to log-probabilities (rows, ids)."""
        return over_words(torch.log_softmax, self.linear(hidden))
