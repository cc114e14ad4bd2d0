"""The inputs and outputs of a model's graphs, which a reader expects and a maker makes."""

from dataclasses import dataclass

import torch

from sruserve.model.config import LABELLED, ModelConfig

Shape = tuple[str | int, ...]
_INTEGERS = ("ids", "lengths", "labels")


@dataclass(frozen=True, slots=True)
class Signature:
    """Names and shapes of inputs and outputs, in order; a dimension with a name is dynamic."""

    inputs: dict[str, Shape]
    outputs: dict[str, Shape]

    @staticmethod
    def dtype(name: str) -> torch.dtype:
        """Return the dtype of an input or output."""
        return torch.int64 if name.startswith(_INTEGERS) else torch.float32


def answer_of(config: ModelConfig) -> str:
    """Return the name of the output with the network's own answer."""
    if config.outputs is None:
        return "hidden"
    return "values" if config.task == "regress" else "logits"


def signature_of(config: ModelConfig, kind: str) -> Signature:
    """Return the signature of a model's graph: "step" or "sequence"."""
    steps: Shape = ("batch",) if kind == "step" else ("batch", "time")
    state: Shape = ("batch", config.layout.width)
    if config.task == "pair":
        inputs: dict[str, Shape] = {}
        for end in ("_a", "_b"):
            inputs |= _inputs(config, ("batch", f"time{end}"), end) | {f"lengths{end}": ("batch",)}
        return Signature(inputs, _answers(config, ("batch",)))
    inputs = _inputs(config, steps)
    if kind == "sequence":
        inputs["lengths"] = ("batch",)
    inputs["state"] = state
    outputs: dict[str, Shape] = {}
    if config.head.crf and kind == "sequence":
        outputs["labels"] = steps
    outputs |= _answers(config, steps if config.answers_by_step else ("batch",))
    return Signature(inputs, outputs | {"new_state": state})


def _inputs(config: ModelConfig, steps: Shape, end: str = "") -> dict[str, Shape]:
    if config.vocab_size is not None:
        return {f"ids{end}": steps}
    return {f"features{end}": (*steps, config.width)}


def _answers(config: ModelConfig, rows: Shape) -> dict[str, Shape]:
    size = config.rnn.output_size if config.outputs is None else config.outputs
    names = [answer_of(config), *(["scores"] if config.task in LABELLED else [])]
    return dict.fromkeys(names, (*rows, size))
