"""State dicts: numbered layers, and tensors of required shapes."""

import re
from collections.abc import Collection, Mapping

from torch import Tensor

from sruserve.model.errors import CheckpointError

_FORMAT = "name the origin of the file with --format"
# What to do about tensors that do not fit each other.
MISFIT = "save the state dict of the trained module again, or choose another --format"
NUMBER = "(0|[1-9][0-9]{0,3})"  # the number of a layer, in patterns of names


def layers_of(tensors: Mapping[str, Tensor], pattern: str) -> list[dict[str, Tensor]]:
    """Return the tensors of each layer, by the rest of their names.

    pattern: matches a name up to the rest; its only group is the layer's `NUMBER`.

    Raises `CheckpointError` unless the layers are numbered from 0 without gaps.
    """
    layers: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if match := re.match(pattern, name):
            layers.setdefault(int(match[1]), {})[name[match.end() :]] = tensor
    if sorted(layers) != list(range(len(layers))):
        raise CheckpointError(
            f"layers must be numbered from 0 without gaps; these are {sorted(layers)[:8]}: save "
            "the whole state dict, or rename them with --rename OLD=NEW"
        )
    return [layers[i] for i in range(len(layers))]


def rest_of(tensors: Mapping[str, Tensor], pattern: str) -> dict[str, Tensor]:
    """Return all tensors whose names do not begin with `pattern`."""
    return {name: tensor for name, tensor in tensors.items() if not re.match(pattern, name)}


def matrix_of(tensors: Mapping[str, Tensor], name: str) -> Tensor | None:
    """Return the tensor of that name, or None; raise `CheckpointError` unless it is a matrix."""
    tensor = tensors.get(name)
    if tensor is not None and tensor.dim() != 2:
        raise CheckpointError(
            f"{name} has shape {list(tensor.shape)}; it must be a matrix: {MISFIT}"
        )
    return tensor


def need(tensors: Mapping[str, Tensor], name: str, dim: int, where: str = "") -> Tensor:
    """Return a tensor of floats, not empty, with `dim` dimensions, or raise `CheckpointError`."""
    tensor = tensors.get(name)
    if tensor is None:
        raise CheckpointError(f"{where}{name} is missing: save the whole state dict, or {_FORMAT}")
    if tensor.dim() != dim or not tensor.numel():
        kind = "vector" if dim == 1 else "matrix"
        raise CheckpointError(
            f"{where}{name} has shape {list(tensor.shape)}; it must be a {kind}, not empty: "
            f"{MISFIT}"
        )
    if not tensor.is_floating_point():
        raise CheckpointError(f"{where}{name} holds {tensor.dtype}, not floats: save it as floats")
    return tensor


def check_names(tensors: Mapping[str, Tensor], names: Collection[str], where: str) -> None:
    """Raise `CheckpointError` unless a layer has these tensors and no others."""
    for name in names:
        if name not in tensors:
            raise CheckpointError(
                f"{where}{name} is missing: save the whole state dict, or {_FORMAT}"
            )
    for name in tensors:
        if name not in names:
            raise CheckpointError(f"{where}{name[:60]} is not expected: remove it, or {_FORMAT}")


def floats(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert floats to float32; integers stay, and a later check refuses them by name."""
    try:
        return {k: t.float() if t.is_floating_point() else t for k, t in tensors.items()}
    except NotImplementedError as error:  # two numbers of 4 bits in a byte
        raise CheckpointError(
            f"some tensors cannot be converted to float32: {error}; save them in float32"
        ) from error
