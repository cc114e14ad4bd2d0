"""A case: inputs saved from the library that trained a model, and what it gave for them."""

import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from sruserve.model.errors import CaseError
from sruserve.model.folder import Model
from sruserve.model.weights import read_tensors

INPUTS = {"x", "tokens"}
OUTPUTS = {"h", "logits", "log_probs"}
_STATE = re.compile(r"(?P<kind>[ch])_(?P<at>[0n])(_(?P<layer>[0-9]{1,4}))?")
_CHUNKED = "_chunked"  # the same, from a run in chunks: it has to be the same
_WHOLE = {"tokens", "lengths"}


class Case:
    """Inputs and expected outputs, (steps, batch, …), and states.

    States are named c_0, h_0 (starting) and c_n, h_n (end), (layers, batch, width), or, where the
    layers' widths differ, c_0_0, c_0_1, …, (batch, width) each. Bidirectional states of `torch.nn`,
    (layers * directions, batch, hidden), are taken as well.
    """

    def __init__(self, path: Path) -> None:
        try:
            self.tensors, _ = read_tensors(path)
        except (OSError, SafetensorError) as error:
            raise CaseError(f"cannot read {path}: {error}") from error
        known = INPUTS | OUTPUTS | {"lengths"}
        bases = {name: name.removesuffix(_CHUNKED) for name in self.tensors}
        unknown = [
            n for n, base in bases.items() if base not in known and not _STATE.fullmatch(base)
        ]
        if unknown:
            raise CaseError(f"{path}: unknown tensors {', '.join(sorted(unknown)[:12])}")
        for name, tensor in self.tensors.items():
            whole = not tensor.dtype.is_floating_point and tensor.dtype is not torch.bool
            if tensor.is_complex() or (name in _WHOLE and not whole):
                wants = "whole" if name in _WHOLE else "real"
                raise CaseError(f"{path}: {name} must hold {wants} numbers, not {tensor.dtype}")
        inputs = self.tensors.get("x", self.tensors.get("tokens"))
        if (
            inputs is None
            or set(self.tensors) >= INPUTS
            or inputs.dim() != (3 if "x" in self.tensors else 2)
            or 0 in inputs.shape
        ):
            raise CaseError(
                f"{path} needs either x (steps, batch, features) or tokens (steps, batch)"
            )
        ends = [m for base in bases.values() if (m := _STATE.fullmatch(base)) and m["at"] == "n"]
        if not ends and not OUTPUTS & set(bases.values()):
            raise CaseError(f"{path} holds nothing to compare: h, logits, log_probs, c_n or h_n")
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

    def outputs(self) -> list[tuple[str, str]]:
        """The outputs to compare: the name of each tensor, and of what it is."""
        names = ((name, name.removesuffix(_CHUNKED)) for name in sorted(self.tensors))
        return [(name, base) for name, base in names if base in OUTPUTS]

    def starts(self, model: Model) -> dict[str, Tensor]:
        """The starting states, (batch, width), by the names of the model's entries."""
        return {
            entry: tensor
            for name in self.tensors
            if (match := _STATE.fullmatch(name)) and match["at"] == "0"
            for entry, tensor in self._entries(model, name, match).items()
        }

    def ends(self, model: Model) -> list[tuple[str, dict[str, Tensor]]]:
        """The end states to compare: the name of each tensor, and what `starts` says of it."""
        found = []
        for name in sorted(self.tensors):
            match = _STATE.fullmatch(name.removesuffix(_CHUNKED))
            if match and match["at"] == "n":
                found.append((name, self._entries(model, name, match)))
        return found

    def check_fit(self, model: Model) -> None:
        """Raise `CaseError` unless the model takes and gives what the case holds."""
        config = model.config
        if config.task == "pair":
            raise CaseError(f"{model.name} compares pairs; verify its encoder, with task encode")
        if (config.vocab_size is None) != ("x" in self.tensors):
            wants = "tokens" if config.vocab_size else "x, features"
            raise CaseError(f"{model.name} takes {wants}; the case holds something else")
        if (
            config.vocab_size
            and not 0 <= int(self.inputs.min()) <= int(self.inputs.max()) < config.vocab_size
        ):
            raise CaseError(f"the case holds tokens outside the vocabulary of {config.vocab_size}")
        places = tuple(self.inputs.shape[:2])
        shapes: dict[str, tuple[int, ...]] = {"h": (*places, config.rnn.output_size)}
        if config.outputs is not None:
            shapes["logits"] = shapes["log_probs"] = (*places, config.outputs)
        if config.vocab_size is None:
            shapes["x"] = (*places, config.rnn.input_size)
        for name, tensor in self.tensors.items():
            base = name.removesuffix(_CHUNKED)
            if base in {"logits", "log_probs"} and config.outputs is None:
                raise CaseError(f"the case holds {name}, and {model.name} has no head")
            if base in shapes and tuple(tensor.shape) != shapes[base]:
                raise CaseError(
                    f"{name} is {list(tensor.shape)}; {model.name} needs {list(shapes[base])}"
                )
        self.starts(model)
        self.ends(model)

    def _entries(self, model: Model, name: str, match: re.Match[str]) -> dict[str, Tensor]:
        """The parts of a state tensor, (batch, width) each, by the names of the model's entries."""
        rnn, tensor = model.config.rnn, self.tensors[name]
        kind = match["kind"]
        carried = {entry.name: entry.size for entry in model.network.layout.entries}
        layers = range(rnn.num_layers) if match["layer"] is None else [int(match["layer"])]
        # A cell that carries no h still has outputs, which are its h.
        widths = {
            f"{i}.{kind}": carried.get(f"{i}.{kind}", rnn.layer_output(i) if kind == "h" else 0)
            for i in layers
            if i < rnn.num_layers
        }
        if not widths or not all(widths.values()):
            raise CaseError(f"the case holds {name}, and {model.name} has no such state")
        parts = [tensor] if match["layer"] or not tensor.dim() else list(tensor)
        if len(parts) == len(widths) * rnn.directions and tensor.dim() == 3:
            step = rnn.directions if len(parts) > len(widths) else 1
            parts = [torch.cat(parts[i : i + step], 1) for i in range(0, len(parts), step)]
        expected = [(self.batch, width) for width in widths.values()]
        if [tuple(part.shape) for part in parts] != expected:
            needs = [len(expected), *expected[0]] if len(set(expected)) == 1 else expected
            raise CaseError(f"{name} is {list(tensor.shape)}; {model.name} needs {needs}")
        return dict(zip(widths, parts, strict=True))
