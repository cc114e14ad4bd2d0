"""Checkpoints of `sru` 2.1.9-2.6.0: the classification and enwik8 scripts, and bare `sru.SRU`."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from sruserve.model.cells.sru import SRUConfig
from sruserve.model.config import explain
from sruserve.model.errors import CheckpointError, OptionError

# The scripts' names, and ours. A bare stack has none of the others.
_RENAMED = {
    "emb_layer.embedding.weight": "embedding.weight",
    "embedding_layer.embedding.weight": "embedding.weight",
    "embedding_layer.weight": "embedding.weight",
    "output_layer.weight": "output.weight",
    "output_layer.bias": "output.bias",
    "out.weight": "output.weight",
    "out.bias": "output.bias",
}
_STACKS = ("encoder.", "rnn.", "")
_TRAINING_ONLY = {
    "dropout",
    "rnn_dropout",
    "highway_bias",
    "v1",
    "amp_recurrence_fp16",
    "nn_rnn_compatible_return",
    "weight_c_init",
}
_UNTOLD = "bidirectional, use_tanh, rescale, has_skip_term, normalize_after"


def is_sru(names: Iterable[str]) -> bool:
    """Whether tensors of these names come from an `sru.SRU`: only its layers have `weight_c`."""
    return any(re.fullmatch(r"(encoder\.|rnn\.|)rnn_lst\.\d+\.weight_c", name) for name in names)


def rename_sru(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Give a checkpoint's tensors the names of a model folder, in float32."""
    stack = next((p for p in _STACKS if any(k.startswith(f"{p}rnn_lst.") for k in tensors)), None)
    if stack is None:
        raise CheckpointError("no rnn_lst.* tensors: this is no checkpoint of an sru.SRU")
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.startswith((f"{stack}rnn_lst.", f"{stack}input_to_hidden.")):
            new = f"rnn.{name.removeprefix(stack)}"
        else:
            new = _RENAMED.get(name, name)
        if new in renamed:
            raise CheckpointError(f"{name} and another tensor both mean {new}")
        renamed[new] = tensor.float() if tensor.is_floating_point() else tensor
    return renamed


def describe_sru(tensors: Mapping[str, Tensor], options: Mapping[str, Any] | None) -> SRUConfig:
    """The stack that renamed tensors belong to; sizes come from them, the rest from `options`.

    options: arguments of the `sru.SRU` constructor, with its defaults for what is left out;
        also `reset_gate`. None raises `OptionError`: a state dict cannot tell them.
    """
    if options is None:
        raise OptionError(
            f"a state dict does not tell {_UNTOLD}: pass --options FILE, a JSON object of the "
            "arguments that sru.SRU was made with ({} where all were its defaults)"
        )
    given = dict(options)
    if given.pop("custom_m", None) is not None:
        raise OptionError("option custom_m: a custom module's own maths cannot be imported")
    if "n_proj" in given:
        inner = given.pop("n_proj")
        if given.setdefault("projection_size", inner) != inner:
            raise OptionError("--options: n_proj and projection_size are one, with two values")
    if isinstance(inner := given.get("projection_size"), int) and inner < 0:
        given["projection_size"] = 0  # the library ignores it as well
    given = {name: value for name, value in given.items() if name not in _TRAINING_ONLY}
    if given.get("bidirectional", False) not in (True, False):
        raise OptionError("--options: bidirectional must be true or false")
    try:
        sizes = _sizes(tensors, bool(given.get("bidirectional", False)))
        for name, found in sizes.items():
            if given.setdefault(name, found) != found:
                raise CheckpointError(f"option {name} is {given[name]}; the weights say {found}")
        config = SRUConfig.model_validate(given)
    except ValidationError as error:
        raise OptionError(f"--options: {explain(error)}") from error
    return config


def _sizes(tensors: Mapping[str, Tensor], bidirectional: bool) -> dict[str, int | bool]:
    """What names and shapes tell. Whether they all fit together is checked on saving.

    An option that the library ignores leaves no trace, so a tensor's absence tells nothing:
    `projection_size` counts only where it is below a layer's widths, and
    `proj_input_to_hidden_first` only where input and output differ.
    """
    numbers = (re.match(r"rnn\.rnn_lst\.([0-9]{1,9})\.", name) for name in tensors)
    layers = {int(number[1]) for number in numbers if number}
    first = "rnn.rnn_lst.0."
    bias, weight = tensors.get(f"{first}bias"), matrix_of(tensors, f"{first}weight")
    if bias is None or weight is None or bias.dim() != 1:
        raise CheckpointError(
            f"{first}bias and {first}weight are missing or misshapen; weights of a custom module "
            "(custom_u, custom_m) cannot be imported"
        )
    directions = 2 if bidirectional else 1
    projections = {
        name: matrix
        for name in tensors
        if name.endswith(".weight_proj") and (matrix := matrix_of(tensors, name)) is not None
    }
    into = matrix_of(tensors, "rnn.input_to_hidden.weight")
    sizes: dict[str, int | bool] = {
        "num_layers": max(layers) + 1,
        "hidden_size": len(bias) // 2 // directions,
        "input_size": len(projections.get(f"{first}weight_proj", weight)),
        "layer_norm": any(".layer_norm." in name for name in tensors),
    }
    if into is not None:
        sizes |= {"input_size": into.shape[1], "proj_input_to_hidden_first": True}
    if projections:
        sizes["projection_size"] = next(iter(projections.values())).shape[1]
    return sizes


def matrix_of(tensors: Mapping[str, Tensor], name: str) -> Tensor | None:
    """The tensor of that name, or None; `CheckpointError` if it is no matrix."""
    tensor = tensors.get(name)
    if tensor is not None and tensor.dim() != 2:
        raise CheckpointError(f"{name} is misshapen: {list(tensor.shape)} is no matrix")
    return tensor
