"""State dicts: numbered layers, and tensors that must have a certain shape."""

import re
from collections.abc import Collection, Mapping

from torch import Tensor

from sruserve.model.errors import CheckpointError

NUMBER = "(0|[1-9][0-9]{0,3})"  # a layer's, in the patterns of names


def layers_of(tensors: Mapping[str, Tensor], pattern: str) -> list[dict[str, Tensor]]:
    """The tensors of each layer, by the rest of their names.

    pattern: of a name up to the rest, with the layer's `NUMBER` as its only group.

    Raises `CheckpointError` unless the layers are numbered from 0 without gaps.
    """
    layers: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := re.match(pattern, name):
            layers.setdefault(int(match[1]), {})[name[match.end() :]] = tensor
    if sorted(layers) != list(range(len(layers))):
        raise CheckpointError(f"layers {sorted(layers)[:8]} are not numbered from 0 without gaps")
    return [layers[i] for i in range(len(layers))]


def rest_of(tensors: Mapping[str, Tensor], pattern: str) -> dict[str, Tensor]:
    """All tensors whose names do not begin with `pattern`."""
    return {name: tensor for name, tensor in tensors.items() if not re.match(pattern, name)}


def matrix_of(tensors: Mapping[str, Tensor], name: str) -> Tensor | None:
    """The tensor of that name, or None; `CheckpointError` if it is no matrix."""
    tensor = tensors.get(name)
    if tensor is not None and tensor.dim() != 2:
        raise CheckpointError(f"{name} is misshapen: {list(tensor.shape)} is no matrix")
    return tensor


def need(tensors: Mapping[str, Tensor], name: str, dim: int, where: str = "") -> Tensor:
    """The floats of that name and number of dimensions, not empty, or `CheckpointError`."""
    tensor = tensors.get(name)
    if tensor is None:
        raise CheckpointError(f"{where}{name} is missing")
    if tensor.dim() != dim or not tensor.numel():
        raise CheckpointError(f"{where}{name} is misshapen: {list(tensor.shape)}")
    if not tensor.is_floating_point():
        raise CheckpointError(f"{where}{name} holds {tensor.dtype}, not floats")
    return tensor


def check_names(tensors: Mapping[str, Tensor], names: Collection[str], where: str) -> None:
    """Raise `CheckpointError` unless a layer has these tensors and no others."""
    for name in names:
        if name not in tensors:
            raise CheckpointError(f"{where}{name} is missing")
    for name in tensors:
        if name not in names:
            raise CheckpointError(f"{where}{name[:60]} is not expected")


def floats(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same in float32; what holds whole numbers stays, to be refused by its name."""
    try:
        return {k: t.float() if t.is_floating_point() else t for k, t in tensors.items()}
    except NotImplementedError as error:  # two numbers of 4 bits in a byte
        raise CheckpointError(f"numbers that cannot be made float32: {error}") from error
