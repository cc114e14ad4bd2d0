"""The nodes of a Keras model's description: what a layer reads, and with which arguments."""

from collections.abc import Iterator
from typing import Any

from sruserve.model.errors import CheckpointError
from sruserve.model.importers.keras.advice import AGAIN


def sources_of(node: Any) -> Iterator[tuple[str, int]]:
    """Yield the layers that a node reads, and the number of the output; a mask is left out."""
    if isinstance(node, dict):  # Keras 3
        arguments = node.get("kwargs")
        others = arguments if isinstance(arguments, dict) else {}
        for value in (node.get("args"), {k: v for k, v in others.items() if k != "mask"}):
            yield from tensors_in(value)
    else:  # [[name, node, output, arguments], …]
        for source in node if isinstance(node, list) else ():
            if not isinstance(source, list) or len(source) < 3:
                raise CheckpointError(
                    f"the model's description has a node that cannot be read; {AGAIN}"
                )
            yield str(source[0]), int(source[2])
            others = source[3] if len(source) > 3 and isinstance(source[3], dict) else {}
            for argument, value in others.items():
                if argument != "mask" and isinstance(value, list):
                    yield str(value[:1]), -1


def arguments_of(node: Any) -> dict[str, Any]:
    """Return a node's arguments by name."""
    if isinstance(node, dict):  # Keras 3
        return node["kwargs"] if isinstance(node.get("kwargs"), dict) else {}
    arguments: dict[str, Any] = {}
    for source in node if isinstance(node, list) else ():
        if isinstance(source, list) and len(source) > 3 and isinstance(source[3], dict):
            arguments |= source[3]
    return arguments


def tensors_in(value: Any) -> Iterator[tuple[str, int]]:
    """Yield the layers whose outputs are in an argument of Keras 3, and the number of each."""
    if isinstance(value, dict) and value.get("class_name") == "__keras_tensor__":
        history = valid(value.get("config"), "keras_history", list)
        yield str(history[0]), int(history[2])
    elif isinstance(value, dict):
        for inner in value.values():
            yield from tensors_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from tensors_in(inner)


def valid(owner: Any, name: str, kind: type) -> Any:
    """Return a field of a description; raises `CheckpointError` if it is of another type."""
    value = owner.get(name) if isinstance(owner, dict) else None
    if not isinstance(value, kind):
        raise CheckpointError(f"the model's description has no valid {name}; {AGAIN}")
    return value
