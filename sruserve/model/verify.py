"""Run a model on inputs saved from the library that trained it, and compare."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.model.cases import Case
from sruserve.model.folder import Model


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest |ours - theirs| of one tensor; infinite where one is finite and the other not."""

    run: str
    tensor: str
    largest: float


def verify(model: Model, case: Case, splits: int = 4, seed: int = 0) -> Iterator[Difference]:
    """Compare whole, then, where the model streams, in `splits` random splits of every sequence."""
    case.check_fit(model)
    yield from _compare(model, case, [case.lengths], "whole")
    if not model.network.streams:
        return
    pick = random.Random(seed)
    for split in range(splits):
        ends = [[*sorted(pick.randint(0, n) for _ in range(3)), n] for n in case.lengths]
        chunks = [[end[i] for end in ends] for i in range(4)]
        yield from _compare(model, case, chunks, f"split {split + 1}")


def _compare(model: Model, case: Case, ends: list[list[int]], run: str) -> Iterator[Difference]:
    """Run every sequence up to each of `ends` in turn and compare outputs and end state."""
    network = model.network
    states = _start(model, case)
    last = _last_outputs(model, case, states) if _wants_layers(model, case) else {}
    rows = torch.arange(case.batch)
    hidden: list[list[Tensor]] = [[] for _ in rows]
    begins = [0] * case.batch
    for chunk in ends:
        parts = [case.inputs[begins[b] : chunk[b], b] for b in rows.tolist()]
        sizes = [len(part) for part in parts]
        offsets = torch.tensor([0, *sizes]).cumsum(0)
        if sum(sizes):
            h = network.hidden(torch.cat(parts), RaggedBatch(offsets, states, rows, rows))
            for b, part in enumerate(torch.split(h, sizes)):
                hidden[b].append(part)
        begins = chunk
    whole = [torch.cat(parts) if parts else None for parts in hidden]
    for name, kind in case.outputs():
        found = [
            (_output(model, h, kind), case.tensors[name][: len(h), b])
            for b, h in enumerate(whole)
            if h is not None
        ]
        yield Difference(run, name, max((_largest(a, b) for a, b in found), default=0.0))
    ours = last | network.layout.unpack(states.cpu())
    for name, entries in case.ends(model):
        largest = max(_largest(ours[entry], tensor) for entry, tensor in entries.items())
        yield Difference(run, name, largest)


def _output(model: Model, h: Tensor, kind: str) -> Tensor:
    if kind == "h":
        return h.float().cpu()
    scores = model.network.logits(h)
    return (model.network.log_probs(scores) if kind == "log_probs" else scores).cpu()


def _start(model: Model, case: Case) -> Tensor:
    """The states that the case starts from; zeros where it does not say, or the cell has none."""
    layout, device = model.network.layout, model.network.device
    given = layout.unpack(layout.allocate(case.batch)) | case.starts(model)
    return layout.pack(given).to(device)


def _wants_layers(model: Model, case: Case) -> bool:
    """Whether the case holds the last outputs of layers, as the h of cells that carry none."""
    carried = {entry.name for entry in model.network.layout.entries}
    return any(entry not in carried for _, entries in case.ends(model) for entry in entries)


def _last_outputs(model: Model, case: Case, states: Tensor) -> dict[str, Tensor]:
    """Every layer's output at the last step of each sequence, (batch, width), as "0.h", "1.h", …"""
    rows = torch.arange(case.batch)
    inputs = torch.cat([case.inputs[:n, b] for b, n in enumerate(case.lengths)])
    offsets = torch.tensor([0, *case.lengths]).cumsum(0)
    batch = RaggedBatch(offsets, states.clone(), rows, rows)
    places = (offsets[1:] - 1).clamp(min=0)
    some = (offsets.diff() > 0).unsqueeze(1)
    return {
        f"{i}.h": torch.where(some, h.float().cpu()[places], 0.0)
        for i, h in enumerate(model.network.outputs_of_layers(inputs, batch))
    }


def _largest(ours: Tensor, theirs: Tensor) -> float:
    theirs = theirs.float()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    apart = (ours - theirs).abs().nan_to_num(torch.inf, torch.inf)
    return float(torch.where(same, 0.0, apart).max()) if len(apart) else 0.0  # a length of 0
