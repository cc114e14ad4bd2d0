"""The positions of an SRU++ checkpoint's norms, which each release names differently."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.options import CORRECT, flag, shown
from sruserve.model.importers.tensors import need

_INNER, _OUTER = "transform_module.layer_norm.weight", "layer_norm.weight"


def norms(layers: Sequence[Mapping[str, Tensor]], arguments: Mapping[str, Any]) -> dict[str, bool]:
    """Return the four switches of `SRUppConfig`, from the tensors, and else from the options.

    dev1, dev2: `layer_norm` adds a norm to the attention, after it unless `normalize_after` is
    false. dev3, dev4: `normalization_type` 1 is that norm, 2 is one of a layer's input, 3 is one of
    its output. dev5, dev6: `attn_layer_norm` is that norm, `layer_norm` is a second one, of a
    layer's input unless `normalize_after` is true.
    """
    inner, outer = (any(name in layer for layer in layers) for name in (_INNER, _OUTER))
    kind = arguments.get("normalization_type")
    if kind not in (None, 1, 2, 3):
        raise OptionError(f"--options: normalization_type is {shown(kind)}; it must be 1, 2 or 3")
    if kind is not None and (inner, outer) != (kind == 1, kind != 1):
        raise CheckpointError(
            f"option normalization_type is {kind}, which the weights contradict: {CORRECT}"
        )
    if flag(arguments, "attn_layer_norm", inner) != inner:
        raise CheckpointError(
            f"option attn_layer_norm is {not inner}, but the weights say {inner}: {CORRECT}"
        )
    stated = flag(arguments, "layer_norm", outer)
    if kind is None and ((stated and not (inner or outer)) or (outer and not stated)):
        raise CheckpointError(
            f"option layer_norm is {stated}, but the weights say {not stated}: {CORRECT}"
        )
    switches = {
        "attn_layer_norm": inner,
        "attn_normalize_after": True,
        "layer_norm": outer,
        "normalize_after": False,
    }
    if outer:
        switches["normalize_after"] = _after(layers, arguments)
    elif inner and stated:  # dev1 or dev2: later releases would have both norms
        switches["attn_normalize_after"] = flag(arguments, "normalize_after", True)
    return switches


def _after(layers: Sequence[Mapping[str, Tensor]], arguments: Mapping[str, Any]) -> bool:
    """Whether a layer's norm is one of its output: by the norm's size, or by an option."""
    after: bool | None = None
    if "normalization_type" in arguments:
        after = bool(arguments["normalization_type"] == 3)
    elif "normalize_after" in arguments:
        after = flag(arguments, "normalize_after", False)
    for i, layer in enumerate(layers):
        where = f"rnn_lst.{i}."
        size = len(need(layer, _OUTER, 1, where))
        inputs = need(layer, "transform_module.linear1.weight", 2, where).shape[1]
        outputs = len(need(layer, "bias", 1, where)) // 2
        if inputs != outputs and size in (inputs, outputs):
            if after not in (None, size == outputs):
                raise CheckpointError(
                    f"{where}{_OUTER} has {size} numbers, so it is not where the options say: "
                    "correct normalize_after or normalization_type, or leave them out"
                )
            after = size == outputs
    if after is None:
        raise OptionError(
            "normalize_after is not stored in a state dict: pass it in --options (or "
            "normalization_type, of dev3 and dev4)"
        )
    return after
