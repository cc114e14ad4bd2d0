"""The layers of an `sru.SRU`, or `SRUCell`s one after another, of any release as one stack."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sruserve.model.cells.sru import SRUConfig
from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.options import agree, flag, known, make, shown
from sruserve.model.importers.origin import Options
from sruserve.model.importers.sru_release import Era, eras_of, settle, told
from sruserve.model.importers.tensors import matrix_of, need

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
    cell: bool = False,
) -> tuple[dict[str, Tensor], SRUConfig]:
    """The stack's tensors and config; sizes come from tensors, the rest from `options`.

    layers: each layer's state dict. norms: those of `ln_lst`, which 2.1.7 is the last to have.
    into: the weight of `input_to_hidden`. cell: see `maths_of`.
    options: arguments of the constructor, with its defaults for what is left out; also
        `reset_gate` and `release`. None raises `OptionError`: a state dict cannot tell them.
    """
    if options is None:
        raise OptionError(
            f"{UNTOLD} are not stored in a state dict: pass them in --options FILE, a JSON object "
            "of the arguments that sru.SRU was made with ({} where all were its defaults)"
        )
    for name in CUSTOM:
        if options.get(name) is not None:
            raise OptionError(f"option {name}: a custom module's own maths cannot be imported")
    given = known(options, _KNOWN, TRAINING | set(CUSTOM))
    plain = [_plain(layer, i) for i, layer in enumerate(layers)]
    if norms and len(norms) != len(layers):
        raise CheckpointError(f"{len(norms)} norms in ln_lst for {len(layers)} layers")
    for i, norm in enumerate(norms):
        plain[i]["layer_norm.weight"] = need(norm, "a", 1, f"ln_lst.{i}.")
        plain[i]["layer_norm.bias"] = need(norm, "b", 1, f"ln_lst.{i}.")
    outputs = len(need(plain[0], "bias", 1, "rnn_lst.0.")) // 2
    skips = flag(given, "has_skip_term", True)
    names = {name for layer in layers for name in layer}
    names |= ({"ln_lst"} if norms else set()) | ({"input_to_hidden"} if into is not None else set())
    eras = told(eras_of(names), given)
    stored = [
        _scale(layer, i) if skips and layer["weight"].shape[1] == 3 * outputs else 1.0
        for i, layer in enumerate(plain)
    ]
    maths = settle(eras, given, stored, cell)
    tensors = {} if into is None else {"input_to_hidden.weight": into}
    unsaved = not {"weight_c", "scale_x"} & names
    for i, layer in enumerate(plain):
        if unsaved:
            layer["weight_c"] = torch.zeros(2 * outputs)
        if unsaved or maths.scales[i] != 1:
            layer["scale_x"] = torch.tensor([maths.scales[i]])
        tensors |= {f"rnn_lst.{i}.{name}": tensor for name, tensor in layer.items()}
    fields = _fields(given, plain, into, eras, outputs)
    fields = agree(fields, {"weight_norm": "gain" in names})
    if norms:
        fields = agree(fields, {"normalize_after": True})
        fields["norm"] = "std" if eras == (Era.Y2018,) else "unbiased"
    fields["rescale"] = any(scale != 1 for scale in maths.scales)
    fields |= {f"use_{name}": maths.activation == name for name in ("tanh", "relu", "selu")}
    for name in ("release", "weight_norm", "highway_bias"):
        fields.pop(name, None)
    return {f"rnn.{name}": tensor for name, tensor in tensors.items()}, make(SRUConfig, fields)


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
    if (gain := plain.pop("gain", None)) is not None:
        if gain.shape != weight.shape[1:]:
            raise CheckpointError(f"{where}gain is misshapen: {list(gain.shape)}")
        plain["weight"] = gain * (weight / weight.norm(2, 0))
    return plain


def _scale(layer: Mapping[str, Tensor], index: int) -> float | None:
    scale = layer.get("scale_x")
    if scale is None:
        return None
    if scale.numel() != 1:
        raise CheckpointError(f"rnn_lst.{index}.scale_x is misshapen: {list(scale.shape)}")
    return scale.item()


def _fields(
    given: dict[str, Any],
    layers: Sequence[Mapping[str, Tensor]],
    into: Tensor | None,
    eras: tuple[Era, ...],
    outputs: int,
) -> dict[str, Any]:
    """The config's fields so far: what names and shapes tell, and the options beside that.

    An option that the library ignores leaves no trace, so a tensor's absence tells nothing:
    `projection_size` counts only where it is below a layer's widths, and
    `proj_input_to_hidden_first` only where input and output differ.
    """
    given = dict(given)
    if "n_proj" in given:
        inner = given.pop("n_proj")
        if given.setdefault("projection_size", inner) != inner:
            raise OptionError("--options: n_proj and projection_size are one, with two values")
    bidirectional = flag(given, "bidirectional", False)
    matrices = [matrix_of(layer, "weight_proj") for layer in layers]
    inner_sizes = tuple(0 if matrix is None else matrix.shape[1] for matrix in matrices)
    firsts = [
        layer["weight"] if m is None else m for layer, m in zip(layers, matrices, strict=True)
    ]
    inputs = [len(first) for first in firsts]
    found: dict[str, Any] = {
        "num_layers": len(layers),
        "hidden_size": outputs // (2 if bidirectional else 1),
        "input_size": inputs[0],
        "layer_norm": any("layer_norm.weight" in layer for layer in layers),
    }
    if into is not None:
        found |= {"input_size": into.shape[1], "proj_input_to_hidden_first": True}
    said = given.pop("projection_size", None)
    given["projection_size"] = _projection(said, inner_sizes, inputs, outputs, eras, bidirectional)
    return agree(given, found)


def _projection(
    said: object,
    found: tuple[int, ...],
    inputs: Sequence[int],
    outputs: int,
    eras: tuple[Era, ...],
    bidirectional: bool,
) -> int | tuple[int, ...]:
    """The factorised weights' inner widths: one number where the rule of 2.1.9 gives them all."""

    def rule(size: int, below: int) -> tuple[int, ...]:
        return tuple(size if 0 < size < min(width, below) else 0 for width in inputs)

    largest = max(found)
    found_is_rule = rule(largest, outputs) == found and Era.FOURTH not in eras
    own: int | tuple[int, ...] = largest if found_is_rule or not largest else found
    if said is None:
        return own
    listed = said if isinstance(said, list) else [said] * len(found)
    sizes = tuple(size for size in listed if type(size) is int)
    if len(listed) != len(found) or len(sizes) != len(listed):
        raise OptionError(f"--options: projection_size is {shown(said)}, no width of a projection")
    if Era.FOURTH in eras or isinstance(said, list):
        expected = [sizes]
    else:
        per_direction = outputs // 2 if bidirectional else outputs
        expected = [rule(sizes[0], outputs)]
        if Era.FIRST in eras or Era.SECOND in eras:
            expected.append(rule(sizes[0], per_direction))
    if found in expected:
        return own
    if any(found):
        size = next(size for size in found if size)
        raise CheckpointError(f"option projection_size is {shown(said)}; the weights say {size}")
    raise CheckpointError(
        f"option projection_size is {shown(said)}; rnn_lst.0.weight_proj is missing"
    )
