"""A case: inputs, and the outputs that the library which trained a model computed for them."""

import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from sruserve.model.errors import CaseError
from sruserve.model.folder import Model
from sruserve.model.weights import read_tensors

INPUTS = {"x", "tokens"}
ANSWERS = {"logits", "log_probs", "probabilities", "values"}
OUTPUTS = {"h"} | ANSWERS
_STATE = re.compile(r"(?P<kind>[ch])_(?P<at>[0n])(_(?P<layer>[0-9]{1,4}))?")
_CHUNKED = "_chunked"  # suffix of a result from a run in chunks, which must be the same
_INTEGERS = {"tokens", "lengths"}
_RUNNING = ("last", "mean", "max")  # poolings with a result after every step


class Case:
    """Inputs and expected outputs, (steps, batch, …), answers, (batch, …), and states.

    Logits, log_probs, probabilities and values may have a row for each step, or one for each
    sequence: what a classifier or regressor answers for the whole sequence.

    Start states are named c_0 and h_0, end states c_n and h_n, (layers, batch, width). If the
    layers' widths differ, there is one tensor for each layer: c_0_0, c_0_1, …, (batch, width).
    Bidirectional states of `torch.nn`, (layers * directions, batch, hidden), are accepted too.

    Raises `CaseError`.
    """

    def __init__(self, path: Path) -> None:
        try:
            self.tensors, _ = read_tensors(path)
        except OSError as error:
            raise CaseError(f"cannot read {path}: {error.strerror or error}") from error
        except SafetensorError as error:
            raise CaseError(f"cannot read {path}: {error}") from error
        known = INPUTS | OUTPUTS | {"lengths"}
        bases = {name: name.removesuffix(_CHUNKED) for name in self.tensors}
        unknown = [
            n for n, base in bases.items() if base not in known and not _STATE.fullmatch(base)
        ]
        if unknown:
            raise CaseError(
                f"{path}: unknown tensors {', '.join(sorted(unknown)[:12])}; a case may hold "
                f"{', '.join(sorted(known))} and the states c_0, h_0, c_n and h_n"
            )
        for name, tensor in self.tensors.items():
            is_integer = not tensor.dtype.is_floating_point and tensor.dtype is not torch.bool
            if tensor.is_complex() or (name in _INTEGERS and not is_integer):
                expected = "integers" if name in _INTEGERS else "real numbers"
                raise CaseError(f"{path}: {name} must hold {expected}, not {tensor.dtype}")
        inputs = self.tensors.get("x", self.tensors.get("tokens"))
        if (
            inputs is None
            or set(self.tensors) >= INPUTS
            or inputs.dim() != (3 if "x" in self.tensors else 2)
            or 0 in inputs.shape
        ):
            raise CaseError(
                f"{path} must hold either x (steps, batch, features) or tokens (steps, batch)"
            )
        ends = [m for base in bases.values() if (m := _STATE.fullmatch(base)) and m["at"] == "n"]
        if not ends and not OUTPUTS & set(bases.values()):
            names = ", ".join(sorted(OUTPUTS))
            raise CaseError(f"{path} holds nothing to compare: {names}, c_n or h_n")
        self.inputs = inputs.long() if "tokens" in self.tensors else inputs.float()
        steps, self.batch = inputs.shape[:2]
        lengths = self.tensors.get("lengths", torch.full((self.batch,), steps))
        if lengths.shape != (self.batch,):
            raise CaseError(
                f"{path}: lengths has shape {list(lengths.shape)}, not [{self.batch}], the batch"
            )
        self.lengths: list[int] = lengths.tolist()
        if not all(0 <= n <= steps for n in self.lengths) or not any(self.lengths):
            raise CaseError(
                f"{path}: every length must be 0 to {steps}, the number of steps, and at least one "
                "must not be 0"
            )

    def outputs(self) -> list[tuple[str, str]]:
        """Return the outputs of every step to compare: the name and the kind of each."""
        return [(name, kind) for name, kind in self._results() if not self._is_answer(name, kind)]

    def answers(self) -> list[tuple[str, str]]:
        """Return the results of whole sequences to compare: the name and the kind of each."""
        return [(name, kind) for name, kind in self._results() if self._is_answer(name, kind)]

    def _results(self) -> list[tuple[str, str]]:
        names = ((name, name.removesuffix(_CHUNKED)) for name in sorted(self.tensors))
        return [(name, base) for name, base in names if base in OUTPUTS]

    def _is_answer(self, name: str, kind: str) -> bool:
        return kind in ANSWERS and self.tensors[name].dim() == 2

    def starts(self, model: Model) -> dict[str, Tensor]:
        """Return the start states, (batch, width), by the names of the model's state entries."""
        return {
            entry: tensor
            for name in self.tensors
            if (match := _STATE.fullmatch(name)) and match["at"] == "0"
            for entry, tensor in self._entries(model, name, match).items()
        }

    def ends(self, model: Model) -> list[tuple[str, dict[str, Tensor]]]:
        """Return the end states to compare: each tensor's name, and its parts as in `starts`."""
        ends = []
        for name in sorted(self.tensors):
            match = _STATE.fullmatch(name.removesuffix(_CHUNKED))
            if match and match["at"] == "n":
                ends.append((name, self._entries(model, name, match)))
        return ends

    def check_fit(self, model: Model) -> None:
        """Raise `CaseError` unless the case's tensors fit the model's inputs and outputs."""
        config = model.config
        if config.task == "answer":
            raise CaseError(
                f"{model.name} answers questions, which no case can verify: import its encoders "
                "with --task encode and verify those"
            )
        if config.task == "pair":
            raise CaseError(
                f"{model.name} compares pairs, which tensors cannot verify: use a case of texts, "
                "or import its encoder with --task encode and verify that"
            )
        if (config.vocab_size is None) != ("x" in self.tensors):
            expected = "tokens" if config.vocab_size else "x, features"
            raise CaseError(
                f"the case must hold {expected}, the input of {model.name}: save it with that"
            )
        if (
            config.vocab_size
            and not 0 <= int(self.inputs.min()) <= int(self.inputs.max()) < config.vocab_size
        ):
            raise CaseError(
                f"the case holds tokens {int(self.inputs.min())} to {int(self.inputs.max())}; "
                f"those of {model.name} are 0 to {config.vocab_size - 1}"
            )
        places = tuple(self.inputs.shape[:2])
        shapes = {"h": (*places, config.rnn.output_size), "x": (*places, config.width)}
        for name, tensor in self.tensors.items():
            base = name.removesuffix(_CHUNKED)
            if base in ANSWERS:
                self._check_results(model, name, base)
            elif base in shapes and tuple(tensor.shape) != shapes[base]:
                raise CaseError(_misshapen(model, name, tensor, shapes[base]))
        self.starts(model)
        self.ends(model)

    def _check_results(self, model: Model, name: str, kind: str) -> None:
        """Raise `CaseError` unless the model's head computes such results."""
        config, tensor = model.config, self.tensors[name]
        if config.outputs is None:
            raise CaseError(
                f"the case holds {name}, but {model.name} has no head: save outputs (h) instead"
            )
        if (config.task == "regress") is not (kind == "values"):
            expected = "values" if config.task == "regress" else "logits or probabilities"
            raise CaseError(f"the case holds {name}; {model.name} answers with {expected}")
        if kind == "log_probs" and config.activation != "softmax":
            raise CaseError(
                f"the case holds {name}, but {model.name} has no softmax: save logits or "
                "probabilities"
            )
        steps, whole = (*self.inputs.shape[:2], config.outputs), (self.batch, config.outputs)
        allowed = [steps] if all(kind in _RUNNING for kind in config.head.poolings) else []
        if config.task in ("classify", "regress"):
            allowed.append(whole)
        if tuple(tensor.shape) not in allowed:
            raise CaseError(_misshapen(model, name, tensor, *allowed))

    def _entries(self, model: Model, name: str, match: re.Match[str]) -> dict[str, Tensor]:
        """Return the parts of a state tensor, (batch, width), by the state entries' names."""
        rnn, tensor = model.config.rnn, self.tensors[name]
        kind = match["kind"]
        carried = {entry.name: entry.size for entry in model.network.layout.entries}
        layers = range(rnn.num_layers) if match["layer"] is None else [int(match["layer"])]
        # A cell without h in its state still has outputs, and they are its h.
        widths = {
            f"{i}.{kind}": carried.get(f"{i}.{kind}", rnn.layer_output(i) if kind == "h" else 0)
            for i in layers
            if i < rnn.num_layers
        }
        if not widths or not all(widths.values()):
            raise CaseError(
                f"the case holds {name}, but {model.name} has no such state: leave it out"
            )
        parts = [tensor] if match["layer"] or not tensor.dim() else list(tensor)
        if len(parts) == len(widths) * rnn.directions and tensor.dim() == 3:
            step = rnn.directions if len(parts) > len(widths) else 1
            parts = [torch.cat(parts[i : i + step], 1) for i in range(0, len(parts), step)]
        expected = [(self.batch, width) for width in widths.values()]
        if [tuple(part.shape) for part in parts] != expected:
            needs = [len(expected), *expected[0]] if len(set(expected)) == 1 else expected
            raise CaseError(f"{name} has shape {list(tensor.shape)}; {model.name} needs {needs}")
        return dict(zip(widths, parts, strict=True))


def _misshapen(model: Model, name: str, tensor: Tensor, *shapes: tuple[int, ...]) -> str:
    needs = " or ".join(str(list(shape)) for shape in shapes)
    return f"{name} has shape {list(tensor.shape)}; {model.name} needs {needs}"
