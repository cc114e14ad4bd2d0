"""Keras's layers as steps of a chain."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from sruserve.model.importers.keras.activations import activation_layer, activation_steps
from sruserve.model.importers.keras.advice import AGAIN
from sruserve.model.importers.keras.file import Weights
from sruserve.model.importers.keras.graph import Layer
from sruserve.model.importers.keras.joins import joined_poolings, joined_tables
from sruserve.model.importers.keras.recurrent import (
    RECURRENT,
    bidirectional_steps,
    recurrent_steps,
)
from sruserve.model.importers.options import shown
from sruserve.model.importers.wiring.steps import (
    Array,
    Embed,
    Pool,
    Recurrent,
    Step,
    batch_norm,
    layer_norm,
    linear,
    pool,
    scale,
)

# Layers that do nothing at inference.
_NOTHING = (
    "InputLayer", "Dropout", "SpatialDropout1D", "GaussianNoise", "GaussianDropout", "AlphaDropout",
    "ActivityRegularization", "Identity",
)  # fmt: skip
_ORDER = "change the order of the layers, and save the model again"
_EPSILON = 1e-7  # of Keras, in a Normalization


@dataclass
class Reader:
    """Reads layers in order.

    width: columns of a row; None until it is known. rank: dimensions with the batch, 2 for ids and
    for one row of each input, 3 for steps of rows; None until it is known.
    """

    weights: Weights
    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    features: int | None = None
    width: int | None = None
    rank: int | None = None

    def read(self, layer: Layer) -> None:
        """Append a layer's steps; raises `CheckpointError` for one that cannot be served."""
        self._begin(layer)
        if layer.kind in _NOTHING:
            return
        if layer.kind in (*RECURRENT, "Bidirectional"):
            self._recurrent(layer)
            return
        if layer.inputs:
            self._joined(layer)
            return
        if layer.kind == "TimeDistributed":
            inner = layer.wrapped("layer")
            if self.rank != 3 or inner.kind not in (*_LAYERS, *_ACTIVATIONS, *_NOTHING):
                raise layer.refuse(f"wraps {shown(inner.kind)}, which cannot be served there")
            if inner.kind not in _NOTHING:
                self._layer(inner, "layer")
            return
        if layer.kind not in (*_LAYERS, *_ACTIVATIONS, *_POOLS, "Embedding", "Masking"):
            raise layer.refuse("cannot be served")
        self._layer(layer, "")

    def _layer(self, layer: Layer, part: str) -> None:
        if layer.kind == "Embedding":
            self._embedding(layer)
        elif layer.kind == "Masking":
            value = layer.config.get("mask_value", 0.0)
            self.notes.append(
                f"layer {layer.name} skips steps whose features are all {shown(value)}, as padding "
                "has; the server skips no step: send inputs without padding"
            )
        elif layer.kind in _POOLS:
            self.steps.append(pool(layer.name, self._pooling(layer)))
            self.rank = 2
        elif self.rank is None or (self.rank == 2 and not self.steps):
            raise layer.refuse("must read steps with features, (batch, steps, features)", _ORDER)
        elif layer.kind in _ACTIVATIONS:
            self.steps += activation_layer(layer)
        else:
            self.steps += _LAYERS[layer.kind](self, layer, part)

    def _pooling(self, layer: Layer) -> str:
        """Return the kind of a layer that pools all steps."""
        if self.rank != 3 or layer.config.get("data_format", "channels_last") != "channels_last":
            raise layer.refuse("must pool the steps of a sequence", _ORDER)
        if layer.config.get("keepdims"):
            raise layer.refuse("has keepdims, which cannot be served")
        return _POOLS[layer.kind]

    def _joined(self, layer: Layer) -> None:
        """Read a layer that joins others, all of which read the same."""
        kinds = {each.kind for each in layer.inputs}
        if kinds == {"Embedding"}:
            tables = [self._table(each) for each in layer.inputs]
            self._embedded(layer, joined_tables(layer, tables))
        elif layer.kind == "Concatenate" and kinds <= _POOLS.keys():
            width = self._columns(layer)
            pooled = [self._pooling(each) for each in layer.inputs]
            self.steps += joined_poolings(layer, pooled, width)
            self.rank, self.width = 2, width * len(pooled)
        else:
            raise layer.refuse(
                f"joins {shown(', '.join(sorted(kinds)))}; only poolings of all steps, side by "
                "side, and embeddings of the same ids can be joined"
            )

    def _begin(self, layer: Layer) -> None:
        """Take the input's shape from the first layer that states it."""
        if self.steps or self.rank is not None:
            return
        shape = layer.config.get("batch_shape", layer.config.get("batch_input_shape"))
        if not isinstance(shape, list) or len(shape) not in (2, 3):
            if shape is not None:
                raise layer.refuse(
                    f"has inputs of shape {shown(shape)}, which is no sequence",
                    "save a model that reads (batch, steps) or (batch, steps, features)",
                )
            return
        self.rank = len(shape)
        if self.rank == 3 and isinstance(shape[2], int):
            self.features = self.width = shape[2]

    def _embedding(self, layer: Layer) -> None:
        self._embedded(layer, self._table(layer))

    def _embedded(self, layer: Layer, table: Array) -> None:
        self.steps.append(Embed(layer.name, table))
        self.rank, self.width = 3, int(table.shape[1])

    def _table(self, layer: Layer) -> Array:
        if self.steps or self.rank == 3:
            raise layer.refuse("must be the first layer and read ids, (batch, steps)", _ORDER)
        table = self.weights.of(layer.name, layer.key, "", ["embeddings"])["embeddings"]
        if table.ndim != 2:
            raise layer.refuse(f"has a table of shape {list(table.shape)}", AGAIN)
        if layer.config.get("mask_zero"):
            self.notes.append(
                f"layer {layer.name} has mask_zero: id 0 is padding, which Keras skips; the server "
                "skips no step: send inputs without padding"
            )
        return table

    def _recurrent(self, layer: Layer) -> None:
        if self.rank == 2:
            raise layer.refuse(
                "must read all steps: the layer before it returns only one row",
                "save a model whose layer before it has return_sequences",
            )
        number = sum(isinstance(step, Recurrent) for step in self.steps)
        read = bidirectional_steps if layer.kind == "Bidirectional" else recurrent_steps
        steps = read(layer, self.weights, number)
        first = steps[0]
        assert isinstance(first, Recurrent)
        self._check(layer, int(first.directions[0].weight_ih.shape[1]))
        self.steps += steps
        self.rank = 2 if any(isinstance(step, Pool) for step in steps) else 3
        merged = layer.config.get("merge_mode", "concat") != "concat"
        self.width = first.hidden * (1 if merged else len(first.directions))

    def _check(self, layer: Layer, width: int) -> None:
        """Note that a layer reads rows of `width`; raises `CheckpointError` for another one."""
        if self.width is not None and self.width != width:
            raise layer.refuse(f"reads {width} columns, but there are {self.width}", AGAIN)
        if not self.steps:
            self.features = width
        self.width = width

    def _columns(self, layer: Layer) -> int:
        if self.width is None:
            raise layer.refuse("has inputs of unknown width", "build the model, and save it again")
        return self.width

    def dense(self, layer: Layer, part: str) -> list[Step]:
        biased = bool(layer.config.get("use_bias", True))
        names = ["kernel", *(["bias"] if biased else [])]
        arrays = self.weights.of(layer.name, layer.key, part, names)
        kernel = arrays["kernel"]
        if kernel.ndim != 2 or kernel.shape[1] != layer.config.get("units"):
            raise layer.refuse(f"has a kernel of shape {list(kernel.shape)}", AGAIN)
        self._check(layer, int(kernel.shape[0]))
        if biased and arrays["bias"].shape != kernel.shape[1:]:
            raise layer.refuse(f"has a bias of shape {list(arrays['bias'].shape)}", AGAIN)
        step = linear(layer.name, kernel.T, arrays.get("bias"))
        self.width = int(kernel.shape[1])
        return [step, *activation_steps(layer)]

    def batch_norm(self, layer: Layer, part: str) -> list[Step]:
        self._check_axis(layer)
        statistics = ["moving_mean", "moving_variance"]
        own = self._gamma_beta(layer, part, statistics)
        if own["moving_variance"].min() < 0:
            raise layer.refuse("has a negative variance", AGAIN)
        eps = _epsilon(layer)
        mean, variance = own["moving_mean"], own["moving_variance"]
        return [batch_norm(layer.name, mean, variance, own["gamma"], own["beta"], eps)]

    def layer_norm(self, layer: Layer, part: str) -> list[Step]:
        self._check_axis(layer)
        if layer.config.get("rms_scaling"):
            raise layer.refuse("has rms_scaling, which cannot be served")
        own = self._gamma_beta(layer, part, [])
        return [layer_norm(layer.name, own["gamma"], own["beta"], _epsilon(layer))]

    def normalization(self, layer: Layer, part: str) -> list[Step]:
        if layer.config.get("invert"):
            raise layer.refuse("has invert, which cannot be served")
        if layer.config.get("axis", -1) is not None:
            self._check_axis(layer)
        constants = [layer.config.get("mean"), layer.config.get("variance")]
        if constants == [None, None]:
            arrays = self._statistics(layer, part)
        else:
            try:
                arrays = [np.asarray(each, np.float64).reshape(-1) for each in constants]
            except (TypeError, ValueError) as error:
                raise layer.refuse("has a mean or variance that is not numbers", AGAIN) from error
        columns = self._columns(layer)
        try:
            mean, variance = (np.broadcast_to(each.reshape(-1), (columns,)) for each in arrays)
        except ValueError as error:
            raise layer.refuse(f"does not have {columns} means and variances", AGAIN) from error
        if not variance.min() >= 0:
            raise layer.refuse("has a variance that is not a positive number", AGAIN)
        deviation = np.maximum(np.sqrt(variance.astype(np.float64)), _EPSILON)
        return [scale(layer.name, mean, 1 / deviation, np.zeros(columns))]

    def _statistics(self, layer: Layer, part: str) -> list[Array]:
        """Return what `adapt` stored; with them, Keras stores how many numbers it has seen."""
        arrays = self.weights.of(layer.name, layer.key, part, ["mean", "variance", "count"])
        return [arrays["mean"], arrays["variance"]]

    def rescaling(self, layer: Layer, part: str) -> list[Step]:
        del part
        columns = self._columns(layer)
        numbers = [layer.config.get(name) for name in ("scale", "offset")]
        try:
            factor, offset = (
                np.broadcast_to(np.asarray(n, np.float64), (columns,)) for n in numbers
            )
        except (TypeError, ValueError) as error:
            raise layer.refuse(
                "has a scale or an offset that does not fit its inputs", AGAIN
            ) from error
        return [scale(layer.name, np.zeros(columns), factor, offset)]

    def _gamma_beta(self, layer: Layer, part: str, others: list[str]) -> dict[str, Array]:
        """Return a norm's vectors; ones and zeros for what it does not have."""
        fields = (("gamma", "scale", 1.0), ("beta", "center", 0.0))
        own = [name for name, field, _ in fields if layer.config.get(field, True)]
        columns = self._columns(layer)
        arrays = self.weights.of(layer.name, layer.key, part, [*own, *others])
        arrays = {n: np.full(columns, x, np.float32) for n, _, x in fields} | arrays
        if any(array.shape != (columns,) for array in arrays.values()):
            raise layer.refuse(f"has vectors that do not fit {columns} columns", AGAIN)
        return arrays

    def _check_axis(self, layer: Layer) -> None:
        axis = layer.config.get("axis", -1)
        axis = axis[0] if isinstance(axis, list) and len(axis) == 1 else axis
        if axis not in (-1, (self.rank or 0) - 1):
            raise layer.refuse(f"is over axis {shown(axis)}; only the last one can be served")


def _epsilon(layer: Layer) -> float:
    value = layer.config.get("epsilon", 1e-3)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise layer.refuse(
            f"has the epsilon {shown(value)}",
            "it must be above 0 and at most 1: save a model with such a one",
        )
    return float(value)


_ACTIVATIONS = ("Activation", "Softmax", "ReLU", "LeakyReLU", "ELU")
_POOLS: dict[str, Literal["mean", "max"]] = {
    "GlobalAveragePooling1D": "mean",
    "GlobalMaxPooling1D": "max",
}
_LAYERS: dict[str, Callable[[Reader, Layer, str], list[Step]]] = {
    "Dense": Reader.dense,
    "BatchNormalization": Reader.batch_norm,
    "LayerNormalization": Reader.layer_norm,
    "Normalization": Reader.normalization,
    "Rescaling": Reader.rescaling,
}
