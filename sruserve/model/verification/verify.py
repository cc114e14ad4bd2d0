"""Run a model on a case and compare its results with those of the library that trained it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.model.folder import Model
from sruserve.model.runtime import Runtime
from sruserve.model.verification.answers import Ends, outputs, result, runs
from sruserve.model.verification.cases import Case


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
    for run, ends in runs(model, case.lengths, splits, seed):
        yield from _compare(model, case, ends, run)


def _compare(model: Model, case: Case, ends: Ends, run: str) -> Iterator[Difference]:
    """Run every sequence up to each of `ends` in turn; compare the outputs and the end states."""
    network = model.network
    sequences = [case.inputs[:n, b] for b, n in enumerate(case.lengths)]
    if answers := case.answers():
        last = outputs(network, sequences, _start(model, case), ends, last=True)
        for name, kind in answers:
            rows = [(h, case.tensors[name][b : b + 1]) for b, h in enumerate(last)]
            yield Difference(run, name, _largest_of(network, rows, kind))
    steps, state_names = case.outputs(), case.ends(model)
    if not steps and not state_names:
        return
    states = _start(model, case)
    layers = _outputs_of_layers(model, case, states) if _wants_layers(model, case) else []
    hidden = outputs(network, sequences, states, ends)
    for name, kind in steps:
        own = hidden
        if kind == "h" and _pools(model):  # the pooled outputs are not the stack's
            own = [h if len(h) else None for h in torch.split(layers[-1], case.lengths)]
        rows = [(h, case.tensors[name][: case.lengths[b], b]) for b, h in enumerate(own)]
        yield Difference(run, name, _largest_of(network, rows, kind))
    ours = _last_outputs(case, layers) | network.layout.unpack(states.cpu())
    for name, entries in state_names:
        largest = max(largest_difference(ours[entry], tensor) for entry, tensor in entries.items())
        yield Difference(run, name, largest)


def _largest_of(network: Runtime, rows: Sequence[tuple[Tensor | None, Tensor]], kind: str) -> float:
    """Return the largest difference of results from those of outputs; None has no steps."""
    pairs = ((result(network, h, kind), theirs) for h, theirs in rows if h is not None)
    return max((largest_difference(ours, theirs) for ours, theirs in pairs), default=0.0)


def _start(model: Model, case: Case) -> Tensor:
    """Return the case's start states; zeros for entries that it does not hold."""
    layout, device = model.network.layout, model.network.device
    start = layout.unpack(layout.allocate(case.batch)) | case.starts(model)
    return layout.pack(start).to(device)


def _pools(model: Model) -> bool:
    """Whether the network's outputs are pooled, not those of its stack."""
    return model.config.head.pooling != "last"


def _wants_layers(model: Model, case: Case) -> bool:
    """Whether the case holds outputs of layers that are neither results nor in the state."""
    carried = {entry.name for entry in model.network.layout.entries}
    ends = (entry for _, entries in case.ends(model) for entry in entries)
    pooled = _pools(model) and any(kind == "h" for _, kind in case.outputs())
    return pooled or any(entry not in carried for entry in ends)


def _outputs_of_layers(model: Model, case: Case, states: Tensor) -> list[Tensor]:
    """Return each layer's outputs for all sequences, (steps of all, width), float32."""
    rows = torch.arange(case.batch)
    inputs = torch.cat([case.inputs[:n, b] for b, n in enumerate(case.lengths)])
    offsets = torch.tensor([0, *case.lengths]).cumsum(0)
    batch = RaggedBatch(offsets, states.clone(), rows, rows)
    return [h.float().cpu() for h in model.network.outputs_of_layers(inputs, batch)]


def _last_outputs(case: Case, layers: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the layers' outputs at the sequences' last steps, (batch, width), as "0.h", "1.h"."""
    lengths = torch.tensor(case.lengths)
    places = (lengths.cumsum(0) - 1).clamp(min=0)
    has_steps = (lengths > 0).unsqueeze(1)
    return {f"{i}.h": torch.where(has_steps, h[places], 0.0) for i, h in enumerate(layers)}


def largest_difference(ours: Tensor, theirs: Tensor) -> float:
    """Return the largest |ours - theirs|; infinite if only one number of a pair is finite."""
    theirs = theirs.float()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    apart = (ours - theirs).abs().nan_to_num(torch.inf, torch.inf)
    return float(torch.where(same, 0.0, apart).max()) if len(apart) else 0.0  # a length of 0
