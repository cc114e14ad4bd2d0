"""Convert the layers of an `sru.SRU`, or successive `SRUCell`s, of any release to one stack."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sruserve.model.cells.sru import SRUConfig
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.format import Options
from sruserve.model.importers.options import agree, flag, known, make
from sruserve.model.importers.sru_fields import fields_of
from sruserve.model.importers.sru_release import Era, Maths, eras_of, settle, stated_eras
from sruserve.model.importers.tensors import MISFIT, need

# Arguments of the constructors of all releases that do not matter at inference.
TRAINING = {
    "dropout",
    "rnn_dropout",
    "v1",
    "is_input_normalized",
    "amp_recurrence_fp16",
    "nn_rnn_compatible_return",
    "weight_c_init",
}
_CUSTOM = "import a stack of plain layers"
CUSTOM = ("custom_m", "custom_u", "custom_v", "transform_module")
_KNOWN = {
    "input_size",
    "hidden_size",
    "num_layers",
    "bidirectional",
    "projection_size",
    "n_proj",
    "use_tanh",
    "use_relu",
    "use_selu",
    "weight_norm",
    "layer_norm",
    "normalize_after",
    "highway_bias",
    "has_skip_term",
    "rescale",
    "proj_input_to_hidden_first",
    "reset_gate",
    "release",
    *CUSTOM,
}
NOT_STORED = "bidirectional, use_tanh, rescale, has_skip_term, normalize_after"


def read_stack(
    layers: Sequence[Mapping[str, Tensor]],
    norms: Sequence[Mapping[str, Tensor]],
    into: Tensor | None,
    options: Options | None,
    cells: bool = False,
) -> tuple[dict[str, Tensor], SRUConfig]:
    """Return the stack's tensors and config; `options` have what tensors do not show.

    layers: each layer's state dict. norms: those of `ln_lst`, which exist up to 2.1.7.
    into: the weight of `input_to_hidden`.
    options: arguments of the constructor, with its defaults for missing ones; also `reset_gate` and
        `release`. None raises `OptionError`, because a state dict does not hold them.
    cells: the layers are `SRUCell`s, whose defaults apply.
    """
    arguments = _checked_options(options)
    plain = _plain_layers(layers, norms)
    names = {name for layer in layers for name in layer}
    names |= ({"ln_lst"} if norms else set()) | ({"input_to_hidden"} if into is not None else set())
    eras = stated_eras(eras_of(names), arguments)
    maths = settle(eras, arguments, _highways(plain, flag(arguments, "has_skip_term", True)))
    if norms:
        arguments = agree(arguments, {"normalize_after": True})
    fields = agree(fields_of(arguments, plain, into, eras, cells), {"weight_norm": "gain" in names})
    if norms:
        fields["norm"] = "std" if eras == (Era.Y2018,) else "unbiased"
    fields["rescale"] = any(scale != 1 for scale in maths.scales)
    fields |= {f"use_{name}": maths.activation == name for name in ("tanh", "relu", "selu")}
    for name in ("release", "weight_norm", "highway_bias"):
        fields.pop(name, None)
    tensors = {} if into is None else {"rnn.input_to_hidden.weight": into}
    for i, layer in enumerate(_scaled(plain, maths, {"weight_c", "scale_x"} & names)):
        tensors |= {f"rnn.rnn_lst.{i}.{name}": tensor for name, tensor in layer.items()}
    return tensors, make(SRUConfig, fields)


def _checked_options(options: Options | None) -> dict[str, Any]:
    """Return the options that matter at inference, or raise `OptionError`."""
    if options is None:
        raise OptionError(
            f"{NOT_STORED} are not stored in a state dict: pass them in --options FILE, a JSON "
            "object of the arguments that sru.SRU was created with ({} if all had their defaults)"
        )
    for name in CUSTOM:
        if options.get(name) is not None:
            raise OptionError(
                f"option {name}: the maths of a custom module cannot be imported: {_CUSTOM}"
            )
    return known(options, _KNOWN, TRAINING | set(CUSTOM))


def _plain_layers(
    layers: Sequence[Mapping[str, Tensor]], norms: Sequence[Mapping[str, Tensor]]
) -> list[dict[str, Tensor]]:
    """Return the layers with the tensors of 2.1.9 to 2.6.0, each with its own norm."""
    plain = [_plain(layer, i) for i, layer in enumerate(layers)]
    if norms and len(norms) != len(layers):
        raise CheckpointError(f"{len(norms)} norms in ln_lst for {len(layers)} layers: {MISFIT}")
    for i, norm in enumerate(norms):
        plain[i]["layer_norm.weight"] = need(norm, "a", 1, f"ln_lst.{i}.")
        plain[i]["layer_norm.bias"] = need(norm, "b", 1, f"ln_lst.{i}.")
    return plain


def _plain(layer: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    """Return a layer as in 2.1.9 to 2.6.0: 3.0's matrices transposed, 2018's gain multiplied in."""
    plain = dict(layer)
    where = f"rnn_lst.{index}."
    for theirs, ours in (
        ("transform_module.weight", "weight"),
        ("transform_module.0.weight", "weight_proj"),
        ("transform_module.1.weight", "weight"),
    ):
        if theirs in plain and ours not in plain:
            plain[ours] = need(plain, theirs, 2, where).T
            del plain[theirs]
    if any(name.split(".")[0] in CUSTOM for name in plain):
        raise CheckpointError(
            f"{where}*: weights of a custom module ({', '.join(CUSTOM)}) cannot be imported: "
            f"{_CUSTOM}"
        )
    weight = need(plain, "weight", 2, where)
    need(plain, "bias", 1, where)
    if "gain" in plain:
        gain = need(plain, "gain", 1, where)
        del plain["gain"]
        if gain.shape != weight.shape[1:]:
            raise CheckpointError(
                f"{where}gain has shape {list(gain.shape)}, not {list(weight.shape[1:])}: {MISFIT}"
            )
        plain["weight"] = gain * (weight / weight.norm(2, 0))
    return plain


def _highways(layers: Sequence[Mapping[str, Tensor]], skips: bool) -> list[float | None]:
    """Return each layer's `scale_x` if its highway is its input (None: not saved), otherwise 1."""
    return [
        _scale(layer, i) if skips and 2 * layer["weight"].shape[1] == 3 * len(layer["bias"]) else 1
        for i, layer in enumerate(layers)
    ]


def _scaled(
    layers: Sequence[dict[str, Tensor]], maths: Maths, saved: Collection[str]
) -> Iterator[dict[str, Tensor]]:
    """Yield the layers with `weight_c` and `scale_x`, which code from before 2.0 does not save."""
    for layer, scale in zip(layers, maths.scales, strict=True):
        own = dict(layer)
        if not saved:
            own["weight_c"] = torch.zeros(len(layer["bias"]))
        if not saved or scale != 1:
            own["scale_x"] = torch.tensor([scale])
        yield own


def _scale(layer: Mapping[str, Tensor], index: int) -> float | None:
    scale = layer.get("scale_x")
    if scale is None:
        return None
    if scale.numel() != 1:
        raise CheckpointError(
            f"rnn_lst.{index}.scale_x has shape {list(scale.shape)}; it must be one number: "
            f"{MISFIT}"
        )
    return scale.item()
