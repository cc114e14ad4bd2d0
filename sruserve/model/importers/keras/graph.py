"""The layers of a Keras model in the order in which they run."""

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from sruserve.model.errors import CheckpointError
from sruserve.model.importers.keras.advice import AGAIN, CHANGE, OF_KERAS
from sruserve.model.importers.keras.masks import MASKS, check_masks
from sruserve.model.importers.keras.nodes import sources_of, valid
from sruserve.model.importers.options import shown

_MAX_LAYERS = 4096
_JOINS = ("Concatenate", "Add")


@dataclass(frozen=True)
class Layer:
    """A layer of Keras's own.

    kind: the name of its class. key: its place in the weights of a `.keras` file.
    inputs: the layers that it joins; empty for a layer that reads the one before it.
    """

    kind: str
    name: str
    key: str
    config: dict[str, Any]
    inputs: tuple["Layer", ...] = ()

    def refuse(self, problem: str, advice: str = CHANGE) -> CheckpointError:
        """Return the error for a layer that cannot be served.

        problem: a clause after the layer's name. advice: what to do.
        """
        return CheckpointError(f"layer {shown(self.name)} ({shown(self.kind)}) {problem}; {advice}")

    def wrapped(self, field: str) -> "Layer":
        """Return the layer that is in a field of this one; it keeps this one's name and key."""
        inner = self.config.get(field)
        if not isinstance(inner, dict):
            raise self.refuse(f"has no {field}", AGAIN)
        return _layer(inner, self.name, self.key)


def layers_in_order(model: dict[str, Any]) -> list[Layer]:
    """Return a model's layers from input to output; raises `CheckpointError` for branches.

    model: the description of a Sequential or a linear functional model.
    """
    kind, config = model.get("class_name"), model.get("config")
    entries = config if isinstance(config, list) else valid(config, "layers", list)
    if len(entries) > _MAX_LAYERS:
        raise CheckpointError(
            f"the model has {len(entries):,} layers; the limit is {_MAX_LAYERS:,}: save one "
            "network alone"
        )
    if not all(isinstance(entry, dict) for entry in entries):
        raise CheckpointError(f"the model's description has no list of layers; {AGAIN}")
    keys, layers = Counter[str](), {}
    for entry in entries:
        snake = _snake_case(str(entry.get("class_name")))
        key = f"{snake}_{keys[snake]}" if keys[snake] else snake
        keys[snake] += 1
        name = str(entry.get("name") or valid(entry.get("config"), "name", str))
        if name in layers:
            raise CheckpointError(
                f"the model has two layers {shown(name)}: give each a name of its own, and save "
                "the model again"
            )
        layers[name] = (entry, key)
    joins: dict[str, list[str]] = {}
    if kind == "Sequential":
        order = list(layers)
    elif kind in ("Functional", "Model"):
        nodes = {name: entry for name, (entry, _) in layers.items()}
        order, joins = _chain(dict(config or {}), nodes)
    else:
        raise CheckpointError(
            f"the model is of class {shown(kind)}, whose code is not in the file; only Sequential "
            "and functional models can be imported: build the model as one, and save it again"
        )

    def layer(name: str) -> Layer:
        entry, key = layers[name]
        return _layer(entry, name, key)

    joined = {name: tuple(map(layer, names)) for name, names in joins.items()}
    return [replace(layer(name), inputs=joined.get(name, ())) for name in order]


def _layer(entry: dict[str, Any], name: str, key: str) -> Layer:
    kind, config = str(entry.get("class_name")), entry.get("config")
    layer = Layer(kind, name, key, config if isinstance(config, dict) else {})
    module, registered = entry.get("module"), entry.get("registered_name")
    if kind == "Lambda":
        raise layer.refuse("holds code, which is never executed", OF_KERAS)
    foreign = module is not None and not re.match(r"(tf_)?keras(\.|$)", str(module))
    if foreign or ">" in kind or registered not in (None, kind):
        raise layer.refuse("is a custom object, whose code is not in the file", OF_KERAS)
    return layer


def _chain(
    config: dict[str, Any], entries: dict[str, dict[str, Any]]
) -> tuple[list[str], dict[str, list[str]]]:
    """Return the names of a functional model's layers from its only input to its only output.

    Layers that others of `_JOINS` join are not among them; returns their names for each of those.
    """
    order: list[str] = []
    joins: dict[str, list[str]] = {}
    name = _only(config.get("output_layers"), "output")
    while name not in order:
        order.append(name)
        sources = _read_by(name, entries)
        kind = entries[name].get("class_name")
        if not sources and kind == "InputLayer":
            break
        if kind in _JOINS and len(sources) > 1 and all(i == 0 for _, i in sources):
            joins[name] = [source for source, _ in sources]
            sources = [each for source in joins[name] for each in _read_by(source, entries)]
        sources = list(dict.fromkeys(sources))
        if len(sources) != 1 or sources[0][1] != 0:
            raise CheckpointError(
                f"layer {shown(name)} ({shown(kind)}) reads "
                f"{shown(', '.join(f'output {i} of {source}' for source, i in sources))}; a layer "
                "may only read the first output of one other: save a model without branches and "
                "states"
            )
        name = sources[0][0]
    _only(config.get("input_layers"), "input")
    known = {*order, *(each for names in joins.values() for each in names)}
    for other, entry in entries.items():
        if other not in known and entry.get("class_name") not in MASKS:
            raise CheckpointError(
                f"layer {shown(other)} ({shown(entry.get('class_name'))}) is on a branch; only a "
                "chain of layers can be served: save a model without it"
            )
    check_masks(entries)
    return order[::-1], joins


def _read_by(name: str, entries: dict[str, dict[str, Any]]) -> list[tuple[str, int]]:
    """Return the layers that a layer reads, and the number of the output; none for an input."""
    entry = entries.get(name)
    if entry is None:
        raise CheckpointError(
            f"the model's description names the layer {shown(name)}, which it does not have; "
            f"{AGAIN}"
        )
    nodes = valid(entry, "inbound_nodes", list)
    if entry.get("class_name") == "InputLayer":
        return []
    if len(nodes) != 1:
        raise CheckpointError(
            f"layer {shown(name)} is used {len(nodes)} times; each layer may run once: save a "
            "model with a layer of its own at each place"
        )
    return list(sources_of(nodes[0]))


def _only(ends: Any, what: str) -> str:
    """Return the layer of the only input or output, [name, 0, 0] or [[name, 0, 0]]."""
    while isinstance(ends, list) and len(ends) == 1 and isinstance(ends[0], list):
        ends = ends[0]
    if not isinstance(ends, list) or len(ends) != 3 or not isinstance(ends[0], str):
        raise CheckpointError(
            f"the model must have one {what}; it has {shown(ends)}: save a model with one"
        )
    if ends[2] != 0:
        raise CheckpointError(
            f"the model's {what} is output {shown(ends[2])} of {shown(ends[0])}: save a model "
            f"whose {what} is a layer's first"
        )
    return ends[0]


def _snake_case(name: str) -> str:
    """Return a class's name as Keras writes it in the paths of weights."""
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
