"""The encoders of a DrQA reader: successive layers of `SRUCell`, or of `torch.nn` modules."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sruserve.model.cells.stack import StackConfig
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.sru_stack import read_stack
from sruserve.model.importers.tensors import MISFIT, NUMBER, layers_of, need
from sruserve.model.importers.torch_rnn import read as read_torch

_LAYER = re.compile(r"(weight|bias)_(ih|hh)_l0(_reverse)?")


@dataclass(frozen=True)
class Encoder:
    """An encoder's tensors, with the names of a stack, and its config.

    rescales: its highways are scaled by the stored `scale_x`.
    """

    tensors: dict[str, Tensor]
    config: StackConfig
    rescales: bool


def read_encoder(tensors: Mapping[str, Tensor], name: str, options: Mapping[str, Any]) -> Encoder:
    """Read one of the two encoders, `doc_rnn` or `question_rnn`.

    options: arguments of `SRUCell`; of `torch.nn` only an RNN's `nonlinearity`.
    """
    layers = layers_of(tensors, rf"{name}\.rnns\.{NUMBER}\.")
    if not layers:
        raise CheckpointError(
            f"no {name}.rnns.* tensors: this is not a checkpoint of DrQA: choose another --format"
        )
    if all("weight" in layer for layer in layers):
        passed = {"bidirectional": True, "use_tanh": False, **options}
        own, config = read_stack(layers, (), None, passed, cells=True)
        plain = {key.removeprefix("rnn."): tensor for key, tensor in own.items()}
        return Encoder(plain, config, config.rescale)
    stack: dict[str, Tensor] = {}
    for i, layer in enumerate(layers):
        for key, tensor in layer.items():
            match = _LAYER.fullmatch(key)
            if match is None:
                raise CheckpointError(f"{name}.rnns.{i}.{key[:60]} is not expected: {MISFIT}")
            stack[key.replace("_l0", f"_l{i}")] = tensor
    if unknown := set(options) - {"nonlinearity"}:
        raise OptionError(
            f"--options: {min(unknown)[:60]!r} is no option of torch's layers: leave it out"
        )
    weight = need(stack, "weight_hh_l0", 2)
    if weight.shape[0] == weight.shape[1]:  # DrQA leaves an RNN's activation as it is
        options = {"nonlinearity": "tanh", **options}
    imported = read_torch(stack, options, "encode")
    plain = {key.removeprefix("rnn."): tensor for key, tensor in imported.tensors.items()}
    return Encoder(plain, imported.rnn, False)
