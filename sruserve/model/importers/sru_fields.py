"""What names, shapes and options say of a stack of SRU layers, as the fields of its config."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.options import agree, flag, shown
from sruserve.model.importers.sru_release import Era
from sruserve.model.importers.tensors import matrix_of, need


def fields_of(
    given: dict[str, Any],
    layers: Sequence[Mapping[str, Tensor]],
    into: Tensor | None,
    eras: tuple[Era, ...],
    cells: bool,
) -> dict[str, Any]:
    """The config's fields so far: what names and shapes tell, and the options beside that.

    An option that the library ignores leaves no trace, so a tensor's absence tells nothing:
    `projection_size` counts only where it is below a layer's widths, and
    `proj_input_to_hidden_first` only where input and output differ.

    layers: as 2.1.9 to 2.6.0 would have them. cells: they are `SRUCell`s.
    """
    given = dict(given)
    outputs = len(layers[0]["bias"]) // 2
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
    if found["layer_norm"]:
        after = _normalizes_after(layers, inputs)
        if after is None:
            given.setdefault("normalize_after", cells and Era.FOURTH in eras)
        else:
            found["normalize_after"] = after
    said = given.pop("projection_size", None)
    given["projection_size"] = _projection(said, inner_sizes, inputs, outputs, eras, bidirectional)
    return agree(given, found)


def _normalizes_after(layers: Sequence[Mapping[str, Tensor]], inputs: Sequence[int]) -> bool | None:
    """Where a norm stands, by its size; None where input and output are alike."""
    for i, (layer, width) in enumerate(zip(layers, inputs, strict=True)):
        size = len(need(layer, "layer_norm.weight", 1, f"rnn_lst.{i}."))
        outputs = len(layer["bias"]) // 2
        if width != outputs and size in (width, outputs):
            return size == outputs
    return None


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
