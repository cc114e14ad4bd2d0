"""Run sequences as the server does: whole or in chunks, and score what each one ends with."""

import random
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.model.folder import Model
from sruserve.model.runtime import Runtime

_CHUNKS = 4  # of each random split

Ends = list[list[int]]
"""For each chunk, where it ends in each sequence."""


def runs(
    model: Model, lengths: Sequence[int], splits: int, seed: int
) -> Iterator[tuple[str, Ends]]:
    """Yield the name of each run with its chunks: whole, and random splits if the model streams."""
    yield "whole", [list(lengths)]
    if not model.network.supports_streaming:
        return
    pick = random.Random(seed)
    for split in range(splits):
        ends = [[*sorted(pick.randint(0, n) for _ in range(_CHUNKS - 1)), n] for n in lengths]
        yield f"split {split + 1}", [[end[i] for end in ends] for i in range(_CHUNKS)]


def outputs(
    network: Runtime, sequences: Sequence[Tensor], states: Tensor, ends: Ends, last: bool = False
) -> list[Tensor | None]:
    """Run every sequence up to each of `ends` in turn, from its row of `states` on.

    sequences: ids (steps), or features (steps, width), of each one, on the CPU.
    states: (sequences, width), on the network's device; receives the end states.
    last: return only what each sequence ends with, (1, width), as a classifier reads it.

    Returns the outputs of each sequence, (steps, width); None for one without steps.
    """
    rows = torch.arange(len(sequences))
    results: list[list[Tensor]] = [[] for _ in sequences]
    begins = [0] * len(sequences)
    for chunk in ends:
        parts = [x[a:b] for x, a, b in zip(sequences, begins, chunk, strict=True)]
        sizes = torch.tensor([len(part) for part in parts])
        offsets = torch.cat((torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)))
        if offsets[-1]:
            output_rows = offsets[1:][sizes > 0] - 1 if last else None
            batch = RaggedBatch(offsets, states, rows, rows)
            hidden = network.hidden(torch.cat(parts), batch, output_rows)
            counts = sizes.clamp(max=1) if last else sizes
            for own, part in zip(results, torch.split(hidden, counts.tolist()), strict=True):
                own.append(part)
        begins = chunk
    joined = [torch.cat(parts) if any(map(len, parts)) else None for parts in results]
    return [x[-1:] if last and x is not None else x for x in joined]


def result(network: Runtime, hidden: Tensor, kind: str) -> Tensor:
    """Compute what a case calls `kind` from outputs (rows, width); returns float32 on the CPU.

    kind: "h", "logits", "log_probs", or what a reply shows: "probabilities" or "values".
    """
    if kind == "h":
        return hidden.float().cpu()
    scores = network.logits(hidden)
    if kind == "log_probs":
        scores = network.log_probs(scores)
    elif kind != "logits":
        scores = network.activation(scores)
    return scores.float().cpu()
