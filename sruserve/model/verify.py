"""Run a model on a case and compare its results with those of the library that trained it."""

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
    """The largest |ours - theirs| of one tensor; infinite if only one of them is finite."""

    run: str
    tensor: str
    largest: float


def verify(model: Model, case: Case, splits: int = 4, seed: int = 0) -> Iterator[Difference]:
    """Compare whole sequences; if the model streams, also `splits` random splits of each.

    Yields the differences of each run. Raises `CaseError` if the case does not fit the model.
    """
    case.check_fit(model)
    yield from _compare(model, case, [case.lengths], "whole")
    if not model.network.supports_streaming:
        return
    pick = random.Random(seed)
    for split in range(splits):
        ends = [[*sorted(pick.randint(0, n) for _ in range(3)), n] for n in case.lengths]
        chunks = [[end[i] for end in ends] for i in range(4)]
        yield from _compare(model, case, chunks, f"split {split + 1}")


def _compare(model: Model, case: Case, ends: list[list[int]], run: str) -> Iterator[Difference]:
    """Run every sequence up to each of `ends` in turn; compare the outputs and the end states."""
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
    outputs = [torch.cat(parts) if parts else None for parts in hidden]
    for name, kind in case.outputs():
        pairs = [
            (_output(model, h, kind), case.tensors[name][: len(h), b])
            for b, h in enumerate(outputs)
            if h is not None
        ]
        yield Difference(run, name, max((_largest(a, b) for a, b in pairs), default=0.0))
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
    """Return the case's start states; zeros for entries that it does not hold."""
    layout, device = model.network.layout, model.network.device
    start = layout.unpack(layout.allocate(case.batch)) | case.starts(model)
    return layout.pack(start).to(device)


def _wants_layers(model: Model, case: Case) -> bool:
    """Whether the case holds the last outputs of layers as h, which is not in the cells' state."""
    carried = {entry.name for entry in model.network.layout.entries}
    return any(entry not in carried for _, entries in case.ends(model) for entry in entries)


def _last_outputs(model: Model, case: Case, states: Tensor) -> dict[str, Tensor]:
    """Return each layer's outputs at the sequences' last steps, (batch, width), as "0.h", "1.h"."""
    rows = torch.arange(case.batch)
    inputs = torch.cat([case.inputs[:n, b] for b, n in enumerate(case.lengths)])
    offsets = torch.tensor([0, *case.lengths]).cumsum(0)
    batch = RaggedBatch(offsets, states.clone(), rows, rows)
    places = (offsets[1:] - 1).clamp(min=0)
    has_steps = (offsets.diff() > 0).unsqueeze(1)
    return {
        f"{i}.h": torch.where(has_steps, h.float().cpu()[places], 0.0)
        for i, h in enumerate(model.network.outputs_of_layers(inputs, batch))
    }


def _largest(ours: Tensor, theirs: Tensor) -> float:
    theirs = theirs.float()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    apart = (ours - theirs).abs().nan_to_num(torch.inf, torch.inf)
    return float(torch.where(same, 0.0, apart).max()) if len(apart) else 0.0  # a length of 0
