"""Masks in a functional Keras model: those of padding, which the server does not need, and others.

Keras 3 adds nodes to a graph for the masks of Embedding (`mask_zero`) and Masking. A mask of the
user's own has nodes of the same classes, but skips steps that the server would not skip.
"""

from collections.abc import Iterator
from typing import Any

from sruserve.model.errors import CheckpointError
from sruserve.model.importers.keras.nodes import arguments_of, tensors_in, valid
from sruserve.model.importers.options import shown

_COMPARES, _JOINS_FEATURES = "NotEqual", "Any"
MASKS = (_COMPARES, _JOINS_FEATURES)
"""Classes of the nodes that Keras adds to a graph for a mask."""


def check_masks(entries: dict[str, dict[str, Any]]) -> None:
    """Raise `CheckpointError` for a mask that is not of padding, or a call for training.

    entries: the layers of a functional model by name.
    """
    known = set(_of_padding(entries))
    for name, entry in entries.items():
        label = f"layer {shown(name)} ({shown(entry.get('class_name'))})"
        if entry.get("class_name") in MASKS and name not in known:
            raise CheckpointError(
                f"{label} computes a mask that neither mask_zero nor a Masking layer makes, and "
                "the server skips no steps: export the model without it, and send none of them"
            )
        for arguments in map(arguments_of, entry.get("inbound_nodes") or ()):
            if not _is_known(arguments.get("mask"), known):
                raise CheckpointError(
                    f"{label} reads a mask that neither mask_zero nor a Masking layer makes, and "
                    "the server skips no steps: export the model without it"
                )
            if arguments.get("training") is True:
                raise CheckpointError(
                    f"{label} is called with training=True, which the server never does: export "
                    "the model without it"
                )


def _of_padding(entries: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the names of the nodes that make a mask of padding."""
    padding = list(_padding(entries))
    for name, entry in entries.items():
        if entry.get("class_name") == _COMPARES and _compared(entry) in padding:
            yield name
            for other, reader in entries.items():
                if reader.get("class_name") == _JOINS_FEATURES:
                    nodes = valid(reader, "inbound_nodes", list)
                    if list(tensors_in(nodes)) == [(name, 0)]:
                        yield other


def _padding(entries: dict[str, dict[str, Any]]) -> Iterator[tuple[tuple[str, int], float]]:
    """Yield the tensors that have padding, and the number that it has."""
    for entry in entries.values():
        config = valid(entry, "config", dict)
        number: object = None
        if entry.get("class_name") == "Embedding" and config.get("mask_zero"):
            number = 0
        elif entry.get("class_name") == "Masking":
            number = config.get("mask_value", 0.0)
        sources = list(tensors_in(entry.get("inbound_nodes")))
        if isinstance(number, (int, float)) and sources:
            yield sources[0], number


def _compared(entry: dict[str, Any]) -> tuple[tuple[str, int], float] | None:
    """Return the tensor and the number that a node compares."""
    nodes = valid(entry, "inbound_nodes", list)
    arguments = nodes[0].get("args") if len(nodes) == 1 and isinstance(nodes[0], dict) else None
    if not isinstance(arguments, list) or len(arguments) != 2:
        return None
    tensors = list(tensors_in(arguments[0]))
    if len(tensors) != 1 or not isinstance(arguments[1], (int, float)):
        return None
    return tensors[0], arguments[1]


def _is_known(mask: Any, known: set[str]) -> bool:
    """Whether a mask is none, or made of padding alone."""
    if mask is None or (isinstance(mask, list) and all(each is None for each in mask)):
        return True
    tensors = list(tensors_in(mask))
    return bool(tensors) and all(name in known for name, _ in tensors)
