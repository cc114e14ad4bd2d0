"""Run a model on inputs saved from the library that trained it, and compare."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sruserve.kernels import RaggedBatch
from sruserve.model.errors import CaseError
from sruserve.model.folder import Model

_INPUTS = {"x", "tokens", "lengths", "c_0", "h_0"}
_OUTPUTS = {"h", "logits", "log_probs"}
_STATES = {"c_n"}
_WHOLE = {"tokens", "lengths"}


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest |ours - theirs| of one tensor; infinite where one is finite and the other not."""

    run: str
    tensor: str
    largest: float


class Case:
    """Inputs and expected outputs, (steps, batch, …), and states, (layers, batch, width)."""

    def __init__(self, path: Path) -> None:
        try:
            self.tensors = load_file(path)
        except (OSError, SafetensorError) as error:
            raise CaseError(f"cannot read {path}: {error}") from error
        unknown = set(self.tensors) - _INPUTS - _OUTPUTS - _STATES - {"h_n"}
        if unknown:
            raise CaseError(f"{path}: unknown tensors {', '.join(sorted(unknown))}")
        for name, tensor in self.tensors.items():
            whole = not tensor.dtype.is_floating_point and tensor.dtype is not torch.bool
            if tensor.is_complex() or (name in _WHOLE and not whole):
                wants = "whole" if name in _WHOLE else "real"
                raise CaseError(f"{path}: {name} must hold {wants} numbers, not {tensor.dtype}")
        inputs = self.tensors.get("x", self.tensors.get("tokens"))
        if (
            inputs is None
            or {"x", "tokens"} <= set(self.tensors)
            or inputs.dim() != (3 if "x" in self.tensors else 2)
            or 0 in inputs.shape
        ):
            raise CaseError(
                f"{path} needs either x (steps, batch, features) or tokens (steps, batch)"
            )
        if not set(self.tensors) & (_OUTPUTS | _STATES):
            raise CaseError(f"{path} holds nothing to compare: h, logits, log_probs or c_n")
        self.inputs = inputs.long() if "tokens" in self.tensors else inputs.float()
        steps, self.batch = inputs.shape[:2]
        lengths = self.tensors.get("lengths", torch.full((self.batch,), steps))
        if lengths.shape != (self.batch,):
            raise CaseError(f"{path}: lengths is {list(lengths.shape)}, not [{self.batch}]")
        self.lengths: list[int] = lengths.tolist()
        if not all(0 <= n <= steps for n in self.lengths) or not any(self.lengths):
            raise CaseError(
                f"{path}: lengths must give each sequence 0 to {steps} steps, and one at least 1"
            )


def verify(model: Model, case: Case, splits: int = 4, seed: int = 0) -> Iterator[Difference]:
    """Compare whole, then, where the model streams, in `splits` random splits of every sequence."""
    _check_fit(model, case)
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
    for name in sorted(_OUTPUTS & set(case.tensors)):
        found = [
            (_output(model, h, name), case.tensors[name][: len(h), b])
            for b, h in enumerate(whole)
            if h is not None
        ]
        yield Difference(run, name, max((_largest(a, b) for a, b in found), default=0.0))
    if "c_n" in case.tensors:
        ours = torch.stack(list(network.layout.unpack(states.cpu()).values()))
        yield Difference(run, "c_n", _largest(ours, case.tensors["c_n"]))


def _output(model: Model, h: Tensor, name: str) -> Tensor:
    if name == "h":
        return h.float().cpu()
    logits = model.network.logits(h).cpu()
    return logits.log_softmax(-1) if name == "log_probs" else logits


def _start(model: Model, case: Case) -> Tensor:
    layout, device = model.network.layout, model.network.device
    if "c_0" not in case.tensors:
        return layout.allocate(case.batch, device)
    given = {e.name: case.tensors["c_0"][i] for i, e in enumerate(layout.entries)}
    return layout.pack(given).to(device)


def _largest(ours: Tensor, theirs: Tensor) -> float:
    theirs = theirs.float()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    apart = (ours - theirs).abs().nan_to_num(torch.inf, torch.inf)
    return float(torch.where(same, 0.0, apart).max()) if len(apart) else 0.0  # a length of 0


def _check_fit(model: Model, case: Case) -> None:
    config, tensors = model.config, case.tensors
    if (config.vocab_size is None) != ("x" in tensors):
        wants = "tokens" if config.vocab_size else "x, features"
        raise CaseError(f"{model.name} takes {wants}; the case holds something else")
    if (
        config.vocab_size
        and not 0 <= int(case.inputs.min()) <= int(case.inputs.max()) < config.vocab_size
    ):
        raise CaseError(f"the case holds tokens outside the vocabulary of {config.vocab_size}")
    width, layers = config.rnn.output_size, config.rnn.num_layers
    shapes = {"c_0": (layers, case.batch, width), "c_n": (layers, case.batch, width)}
    shapes["h"] = (*case.inputs.shape[:2], width)
    if config.outputs is not None:
        shapes["logits"] = shapes["log_probs"] = (*case.inputs.shape[:2], config.outputs)
    if config.vocab_size is None:
        shapes["x"] = (*case.inputs.shape[:2], config.rnn.input_size)
    for name, tensor in tensors.items():
        if name in {"logits", "log_probs"} and config.outputs is None:
            raise CaseError(f"the case holds {name}, and {model.name} has no head")
        if name in shapes and tuple(tensor.shape) != shapes[name]:
            raise CaseError(
                f"{name} is {list(tensor.shape)}; {model.name} needs {list(shapes[name])}"
            )
