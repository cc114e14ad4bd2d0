"""Write a model folder again with its weights in int8 or bfloat16."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from sruserve.export.errors import ExportError
from sruserve.export.quantize.texts import HeldOut
from sruserve.model.config import ModelConfig
from sruserve.model.folder import Model, load_model, read_folder, save_model
from sruserve.model.quantized import output_axes

Weights = Literal["int8", "bf16"]


def quantize(
    folder: Path,
    out: Path,
    weights: Weights,
    held_out: HeldOut | None = None,
    step: Callable[[str], None] = lambda _: None,
) -> tuple[Model, Model]:
    """Write a model folder with smaller weights; returns the model before and after.

    int8: the weights that multiply whole inputs, the embedding's rows and the head's outputs, with
    a scale for each output; the others stay as they are. The model computes in float32.
    bf16: the same weights, and the recurrent ones; the model computes in bfloat16.
    held_out: data that must fit the model. step: called with what is done, as it begins.

    Raises `ExportError` if `out` is the model itself or `held_out` does not fit, and every error of
    `load_model` and `save_model`; then it writes nothing.
    """
    step("reading the model")
    contents = read_folder(folder)
    if out.resolve() in (folder.resolve(), contents.path):
        raise ExportError(f"{out} is the model itself: choose another folder to write")
    if contents.config.reader is not None:
        raise ExportError(
            "the weights of a model of task answer are not rounded: serve it with --dtype bfloat16 "
            "to compute in bfloat16"
        )
    # The CPU, on which both are compared, does not compute in float16.
    before = load_model(folder, "float32" if contents.config.dtype == "float16" else None)
    if held_out is not None:
        held_out.check_fit(before)
    config, tensors = contents.config, contents.tensors
    if weights == "int8":
        config = config.model_copy(update={"weights": "int8", "dtype": "float32"})
    else:
        tensors = _rounded(config, tensors)
        config = config.model_copy(update={"weights": None, "dtype": "bfloat16"})
    step(f"writing {weights}")
    return before, save_model(out, config, tensors, contents.vocabulary)


def _rounded(config: ModelConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Round the weights to bfloat16 that a network in bfloat16 rounds itself."""
    names = {f"rnn.{name}" for name, shape in config.rnn.shapes().items() if len(shape) == 2}
    names |= set(output_axes(config))
    return {n: t.to(torch.bfloat16) if n in names else t for n, t in tensors.items()}
