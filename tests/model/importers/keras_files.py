"""Write files as Keras writes them, from layers with their weights, without Keras."""

import json
import zipfile
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
NAMES = {
    "Embedding": ["embeddings"],
    "Dense": ["kernel", "bias"],
    "LSTM": ["kernel", "recurrent_kernel", "bias"],
    "GRU": ["kernel", "recurrent_kernel", "bias"],
    "SimpleRNN": ["kernel", "recurrent_kernel", "bias"],
    "BatchNormalization": ["gamma", "beta", "moving_mean", "moving_variance"],
    "LayerNormalization": ["gamma", "beta"],
}
RECURRENT = ("LSTM", "GRU", "SimpleRNN")


@dataclass
class Layer:
    """A layer: its class, its config without the name, its arrays in the order of Keras."""

    kind: str
    config: dict[str, Any] = field(default_factory=dict)
    arrays: list[Array] = field(default_factory=list)
    backward: list[Array] = field(default_factory=list)
    name: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    def entry(self) -> dict[str, Any]:
        """The layer in a model's description."""
        return {
            "module": "keras.layers",
            "class_name": self.kind,
            "config": {"name": self.name, **self.config},
            "registered_name": None,
            **self.extra,
        }


def numbered(layers: list[Layer]) -> list[Layer]:
    for number, layer in enumerate(layers):
        layer.name = layer.name or f"{layer.kind.lower()}_{number + 5}"
    return layers


def description(layers: list[Layer]) -> dict[str, Any]:
    """A Sequential model."""
    entries = [layer.entry() for layer in numbered(layers)]
    return {"class_name": "Sequential", "config": {"name": "sequential", "layers": entries}}


def write_archive(path: Path, layers: list[Layer], model: dict[str, Any] | None = None) -> Path:
    """Write a `.keras` file."""
    config = json.dumps(model or description(layers))
    memory = BytesIO()
    counts: dict[str, int] = {}
    with h5py.File(memory, "w") as file:
        for layer in layers:
            snake = {"LSTM": "lstm", "GRU": "gru", "SimpleRNN": "simple_rnn"}.get(layer.kind)
            snake = snake or "".join(f"_{c}".lower() if c.isupper() else c for c in layer.kind)[1:]
            number = counts.get(snake, 0)
            counts[snake] = number + 1
            key = f"layers/{snake}_{number}" if number else f"layers/{snake}"
            group = file.create_group(f"{key}/vars")
            group.attrs["name"] = layer.name
            part = "cell/vars" if layer.kind in RECURRENT else "vars"
            parts = {part: layer.arrays}
            if layer.kind == "Bidirectional":
                parts = {
                    "forward_layer/cell/vars": layer.arrays,
                    "backward_layer/cell/vars": layer.backward,
                }
            elif layer.kind == "TimeDistributed":
                parts = {"layer/vars": layer.arrays}
            for place, arrays in parts.items():
                for i, array in enumerate(arrays):
                    file[f"{key}/{place}/{i}"] = array
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", '{"keras_version": "3.15.1"}')
        archive.writestr("config.json", config)
        archive.writestr("model.weights.h5", memory.getvalue())
    return path


def write_legacy(path: Path, layers: list[Layer], model: dict[str, Any] | None = None) -> Path:
    """Write an `.h5` file as Keras 2 does: names end in `:0`, texts are bytes."""
    with h5py.File(path, "w") as file:
        file.attrs["model_config"] = json.dumps(model or description(layers)).encode()
        file.attrs["keras_version"] = b"2.15.0"
        weights = file.create_group("model_weights")
        weights.attrs["layer_names"] = [layer.name.encode() for layer in layers]
        for layer in layers:
            group, names = weights.create_group(layer.name), []
            inner = layer.config.get("layer", {}).get("class_name", layer.kind)
            for prefix, arrays in (("forward_", layer.arrays), ("backward_", layer.backward)):
                for name, array in zip(NAMES.get(inner, []), arrays, strict=False):
                    side = f"{prefix}{inner.lower()}/" if layer.backward else ""
                    full = f"{layer.name}/{side}{name}:0"
                    group[full] = array
                    names.append(full.encode())
            group.attrs["weight_names"] = np.array(names, dtype="S") if names else []
    return path
