"""The config of a stack of SRU layers from names, shapes and options."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from sruserve.model.errors import CheckpointError, OptionError
from sruserve.model.importers.options import CORRECT, agree, flag, shown
from sruserve.model.importers.sru_release import Era
from sruserve.model.importers.tensors import matrix_of, need


def fields_of(
    arguments: dict[str, Any],
    layers: Sequence[Mapping[str, Tensor]],
    into: Tensor | None,
    eras: tuple[Era, ...],
    cells: bool,
) -> dict[str, Any]:
    """Return the fields that names, shapes and options determine.

    A missing tensor proves nothing, because the library ignores some options in some layers:
    `projection_size` unless it is below both of a layer's widths, and `proj_input_to_hidden_first`
    unless input and output differ.

    arguments: the options. layers: with the names of 2.1.9 to 2.6.0. into: the weight of
    `input_to_hidden`. eras: the possible ones. cells: the layers are `SRUCell`s.
    """
    arguments = dict(arguments)
    outputs = len(layers[0]["bias"]) // 2
    if "n_proj" in arguments:
        inner = arguments.pop("n_proj")
        if arguments.setdefault("projection_size", inner) != inner:
            raise OptionError(
                "--options: n_proj and projection_size are the same option but differ; pass one"
            )
    bidirectional = flag(arguments, "bidirectional", False)
    matrices = [matrix_of(layer, "weight_proj") for layer in layers]
    inner_sizes = tuple(0 if matrix is None else matrix.shape[1] for matrix in matrices)
    firsts = [
        layer["weight"] if m is None else m for layer, m in zip(layers, matrices, strict=True)
    ]
    inputs = [len(first) for first in firsts]
    from_weights: dict[str, Any] = {
        "num_layers": len(layers),
        "hidden_size": outputs // (2 if bidirectional else 1),
        "input_size": inputs[0],
        "layer_norm": any("layer_norm.weight" in layer for layer in layers),
    }
    if into is not None:
        from_weights |= {"input_size": into.shape[1], "proj_input_to_hidden_first": True}
    if from_weights["layer_norm"]:
        after = _normalizes_after(layers, inputs)
        if after is None:
            arguments.setdefault("normalize_after", cells and Era.FOURTH in eras)
        else:
            from_weights["normalize_after"] = after
    stated = arguments.pop("projection_size", None)
    arguments["projection_size"] = _projection(
        stated, inner_sizes, inputs, outputs, eras, bidirectional
    )
    return agree(arguments, from_weights)


def _normalizes_after(layers: Sequence[Mapping[str, Tensor]], inputs: Sequence[int]) -> bool | None:
    """Whether the norm is of the output, by its size; None if input and output have one width."""
    for i, (layer, width) in enumerate(zip(layers, inputs, strict=True)):
        size = len(need(layer, "layer_norm.weight", 1, f"rnn_lst.{i}."))
        outputs = len(layer["bias"]) // 2
        if width != outputs and size in (width, outputs):
            return size == outputs
    return None


def _projection(
    stated: object,
    inner_sizes: tuple[int, ...],
    inputs: Sequence[int],
    outputs: int,
    eras: tuple[Era, ...],
    bidirectional: bool,
) -> int | tuple[int, ...]:
    """Return the factorised weights' inner widths: one number if the rule of 2.1.9 gives them all.

    stated: the option `projection_size`. inner_sizes: the widths in the weights, 0 for none.
    """

    def rule(size: int, below: int) -> tuple[int, ...]:
        return tuple(size if 0 < size < min(width, below) else 0 for width in inputs)

    largest = max(inner_sizes)
    follows_rule = rule(largest, outputs) == inner_sizes and Era.FOURTH not in eras
    own: int | tuple[int, ...] = largest if follows_rule or not largest else inner_sizes
    if stated is None:
        return own
    listed = stated if isinstance(stated, list) else [stated] * len(inner_sizes)
    sizes = tuple(size for size in listed if type(size) is int)
    if len(listed) != len(inner_sizes) or len(sizes) != len(listed):
        raise OptionError(
            f"--options: projection_size is {shown(stated)}; it must be an integer, or a list with "
            f"one for each of {len(inner_sizes)} layers"
        )
    if Era.FOURTH in eras or isinstance(stated, list):
        expected = [sizes]
    else:
        per_direction = outputs // 2 if bidirectional else outputs
        expected = [rule(sizes[0], outputs)]
        if Era.FIRST in eras or Era.SECOND in eras:
            expected.append(rule(sizes[0], per_direction))
    if inner_sizes in expected:
        return own
    if any(inner_sizes):
        size = next(size for size in inner_sizes if size)
        raise CheckpointError(
            f"option projection_size is {shown(stated)}; the weights say {size}: {CORRECT}"
        )
    raise CheckpointError(
        f"option projection_size is {shown(stated)}, but rnn_lst.0.weight_proj is missing: "
        f"{CORRECT}, or save the whole state dict"
    )
