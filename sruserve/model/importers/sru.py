"""Checkpoints of `sru` 2.1.9-2.6.0: the classification and enwik8 scripts, and bare `sru.SRU`."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from sruserve.model.config import SRUConfig, explain
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
        given["projection_size"] = given.pop("n_proj")
    given = {name: value for name, value in given.items() if name not in _TRAINING_ONLY}
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
    """What the shapes tell. Whether they all fit together is checked on saving."""
    layers = {int(m[1]) for name in tensors if (m := re.match(r"rnn\.rnn_lst\.(\d+)\.", name))}
    first = "rnn.rnn_lst.0."
    bias, weight = tensors.get(f"{first}bias"), tensors.get(f"{first}weight")
    if bias is None or weight is None or bias.dim() != 1 or weight.dim() != 2:
        raise CheckpointError(
            f"{first}bias and {first}weight are missing or misshapen; weights of a custom module "
            "(custom_u, custom_m) cannot be imported"
        )
    directions = 2 if bidirectional else 1
    inner = tensors.get(f"{first}weight_proj")
    into = tensors.get("rnn.input_to_hidden.weight")
    reads = weight if inner is None else inner
    sizes: dict[str, int | bool] = {
        "num_layers": max(layers) + 1,
        "hidden_size": len(bias) // 2 // directions,
        "input_size": into.shape[-1] if into is not None else len(reads),
        "layer_norm": any(".layer_norm." in name for name in tensors),
        "proj_input_to_hidden_first": into is not None,
    }
    inners = {t.shape[-1] for name, t in tensors.items() if name.endswith(".weight_proj")}
    if inners:
        sizes["projection_size"] = inners.pop()
    return sizes
