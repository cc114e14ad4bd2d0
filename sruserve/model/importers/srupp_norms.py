"""Where an SRU++ checkpoint's norms stand: each release says it in other words."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.options import flag
from sruserve.model.importers.tensors import need

_INNER, _OUTER = "transform_module.layer_norm.weight", "layer_norm.weight"


def norms(layers: Sequence[Mapping[str, Tensor]], given: Mapping[str, Any]) -> dict[str, bool]:
    """The four switches of `SRUppConfig`, from the tensors and, where they are silent, options.

    dev1, dev2: `layer_norm` puts a norm beside the attention, after it unless `normalize_after`
    is false. dev3, dev4: `normalization_type` 1 is that norm, 2 one of a layer's input, 3 one of
    its output. dev5, dev6: `attn_layer_norm` is that norm, `layer_norm` a second one, of a
    layer's input unless `normalize_after`.
    """
    inner, outer = (any(name in layer for layer in layers) for name in (_INNER, _OUTER))
    kind = given.get("normalization_type")
    if kind not in (None, 1, 2, 3):
        raise OptionError("--options: normalization_type must be 1, 2 or 3")
    if kind is not None and (inner, outer) != (kind == 1, kind != 1):
        raise CheckpointError(f"option normalization_type is {kind}; the weights say otherwise")
    if flag(given, "attn_layer_norm", inner) != inner:
        raise CheckpointError(f"option attn_layer_norm is not {inner}, as the weights say")
    wanted = flag(given, "layer_norm", outer)
    if kind is None and ((wanted and not (inner or outer)) or (outer and not wanted)):
        raise CheckpointError(f"option layer_norm is {wanted}; the weights say otherwise")
    found = {
        "attn_layer_norm": inner,
        "attn_normalize_after": True,
        "layer_norm": outer,
        "normalize_after": False,
    }
    if outer:
        found["normalize_after"] = _after(layers, given)
    elif inner and wanted:  # dev1 or dev2: the later ones would have both
        found["attn_normalize_after"] = flag(given, "normalize_after", True)
    return found


def _after(layers: Sequence[Mapping[str, Tensor]], given: Mapping[str, Any]) -> bool:
    """Whether a layer's norm is one of its output: by the norm's size, or by what is given."""
    said = None
    if "normalization_type" in given:
        said = given["normalization_type"] == 3
    elif "normalize_after" in given:
        said = flag(given, "normalize_after", False)
    for i, layer in enumerate(layers):
        where = f"rnn_lst.{i}."
        size = len(need(layer, _OUTER, 1, where))
        inputs = need(layer, "transform_module.linear1.weight", 2, where).shape[1]
        outputs = len(need(layer, "bias", 1, where)) // 2
        if inputs != outputs and size in (inputs, outputs):
            if said not in (None, size == outputs):
                raise CheckpointError(f"{where}{_OUTER} has {size} numbers: it is not there")
            said = size == outputs
    if said is None:
        raise OptionError(
            "normalize_after is not stored in a state dict: pass it in --options (or "
            "normalization_type, of dev3 and dev4)"
        )
    return said
