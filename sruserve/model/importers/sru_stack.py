"""The layers of an `sru.SRU`, or `SRUCell`s one after another, of any release as one stack."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sruserve.model.cells.sru import SRUConfig
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.options import agree, flag, known, make
from sruserve.model.importers.origin import Options
from sruserve.model.importers.sru_fields import fields_of
from sruserve.model.importers.sru_release import Era, Maths, eras_of, settle, told
from sruserve.model.importers.tensors import need

# Arguments of the constructors of all releases that have no part in inference.
TRAINING = {
    "dropout",
    "rnn_dropout",
    "v1",
    "is_input_normalized",
    "amp_recurrence_fp16",
    "nn_rnn_compatible_return",
    "weight_c_init",
}
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
UNTOLD = "bidirectional, use_tanh, rescale, has_skip_term, normalize_after"


def read_stack(
    layers: Sequence[Mapping[str, Tensor]],
    norms: Sequence[Mapping[str, Tensor]],
    into: Tensor | None,
    options: Options | None,
    cells: bool = False,
) -> tuple[dict[str, Tensor], SRUConfig]:
    """The stack's tensors and config; sizes come from tensors, the rest from `options`.

    layers: each layer's state dict. norms: those of `ln_lst`, which 2.1.7 is the last to have.
    into: the weight of `input_to_hidden`.
    options: arguments of the constructor, with its defaults for what is left out; also
        `reset_gate` and `release`. None raises `OptionError`: a state dict cannot tell them.
    cells: the layers are `SRUCell`s, and so are the defaults.
    """
    given = _asked(options)
    plain = _plain_layers(layers, norms)
    names = {name for layer in layers for name in layer}
    names |= ({"ln_lst"} if norms else set()) | ({"input_to_hidden"} if into is not None else set())
    eras = told(eras_of(names), given)
    maths = settle(eras, given, _highways(plain, flag(given, "has_skip_term", True)))
    if norms:
        given = agree(given, {"normalize_after": True})
    fields = agree(fields_of(given, plain, into, eras, cells), {"weight_norm": "gain" in names})
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


def _asked(options: Options | None) -> dict[str, Any]:
    """The options that matter, or `OptionError`."""
    if options is None:
        raise OptionError(
            f"{UNTOLD} are not stored in a state dict: pass them in --options FILE, a JSON object "
            "of the arguments that sru.SRU was made with ({} where all were its defaults)"
        )
    for name in CUSTOM:
        if options.get(name) is not None:
            raise OptionError(f"option {name}: a custom module's own maths cannot be imported")
    return known(options, _KNOWN, TRAINING | set(CUSTOM))


def _plain_layers(
    layers: Sequence[Mapping[str, Tensor]], norms: Sequence[Mapping[str, Tensor]]
) -> list[dict[str, Tensor]]:
    """The layers as 2.1.9 to 2.6.0 would have them, their norms among their own tensors."""
    plain = [_plain(layer, i) for i, layer in enumerate(layers)]
    if norms and len(norms) != len(layers):
        raise CheckpointError(f"{len(norms)} norms in ln_lst for {len(layers)} layers")
    for i, norm in enumerate(norms):
        plain[i]["layer_norm.weight"] = need(norm, "a", 1, f"ln_lst.{i}.")
        plain[i]["layer_norm.bias"] = need(norm, "b", 1, f"ln_lst.{i}.")
    return plain


def _plain(layer: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    """A layer as 2.1.9 to 2.6.0 would have it: 3.0's matrices turned, 2018's gain folded in."""
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
            f"{where}*: weights of a custom module ({', '.join(CUSTOM)}) cannot be imported"
        )
    weight = need(plain, "weight", 2, where)
    need(plain, "bias", 1, where)
    if "gain" in plain:
        gain = need(plain, "gain", 1, where)
        del plain["gain"]
        if gain.shape != weight.shape[1:]:
            raise CheckpointError(f"{where}gain is misshapen: {list(gain.shape)}")
        plain["weight"] = gain * (weight / weight.norm(2, 0))
    return plain


def _highways(layers: Sequence[Mapping[str, Tensor]], skips: bool) -> list[float | None]:
    """Each layer's `scale_x` where its highway is its input (None: not saved), and 1 elsewhere."""
    return [
        _scale(layer, i) if skips and 2 * layer["weight"].shape[1] == 3 * len(layer["bias"]) else 1
        for i, layer in enumerate(layers)
    ]


def _scaled(
    layers: Sequence[dict[str, Tensor]], maths: Maths, saved: Collection[str]
) -> Iterator[dict[str, Tensor]]:
    """The layers with what their releases do not save: before 2.0 neither of the two names."""
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
        raise CheckpointError(f"rnn_lst.{index}.scale_x is misshapen: {list(scale.shape)}")
    return scale.item()
