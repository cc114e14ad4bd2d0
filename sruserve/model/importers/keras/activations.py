"""Keras's activations as layers of a model folder."""

from typing import Any

from sruserve.model.importers.keras.advice import AGAIN
from sruserve.model.importers.keras.graph import Layer
from sruserve.model.importers.options import shown
from sruserve.model.importers.wiring.steps import Softmax, Step, activation

# Names of functions in Keras, with the slope that each has as a function.
_FUNCTIONS: dict[str, tuple[str, float | None]] = {
    "relu": ("relu", None),
    "gelu": ("gelu", None),
    "tanh": ("tanh", None),
    "sigmoid": ("sigmoid", None),
    "silu": ("silu", None),
    "swish": ("silu", None),
    "softplus": ("softplus", None),
    "leaky_relu": ("leaky_relu", 0.2),
    "elu": ("elu", 1.0),
}
_SERVED = ", ".join((*_FUNCTIONS, "softmax", "linear"))


def function_name(layer: Layer, field: str, default: str | None = None) -> str | None:
    """Return the name of the built-in function in a field; None for a linear one."""
    value: Any = layer.config.get(field, default)
    if isinstance(value, dict):
        module, registered = value.get("module"), value.get("registered_name")
        builtin = module is None or str(module).split(".")[0] in ("builtins", "keras", "tf_keras")
        if not builtin or registered not in (None, "function"):
            raise layer.refuse(
                f"has a custom {field}, whose code is not in the file",
                f"use one of {_SERVED}, and save the model again",
            )
        value = value.get("config") if isinstance(value.get("config"), str) else value
    if value in (None, "linear"):
        return None
    if not isinstance(value, str) or ">" in value:
        raise layer.refuse(
            f"has the {field} {shown(value)}, which is not a function of Keras",
            f"use one of {_SERVED}, and save the model again",
        )
    return value


def activation_steps(layer: Layer, field: str = "activation") -> list[Step]:
    """Return what a layer's activation adds to the chain."""
    name = function_name(layer, field)
    if name is None:
        return []
    if name == "softmax":
        return [Softmax(layer.name)]
    if name not in _FUNCTIONS:
        raise layer.refuse(
            f"has the activation {shown(name)}, which cannot be served",
            f"use one of {_SERVED}, and save the model again",
        )
    function, slope = _FUNCTIONS[name]
    return [activation(layer.name, function, slope)]


def activation_layer(layer: Layer) -> list[Step]:
    """Return the steps of a layer that is only an activation."""
    config = layer.config
    if layer.kind == "Activation":
        return activation_steps(layer)
    if layer.kind == "Softmax":
        if config.get("axis", -1) not in (-1, [-1]):
            raise layer.refuse(f"is over axis {shown(config.get('axis'))}; only -1 can be served")
        return [Softmax(layer.name)]
    if layer.kind == "ELU":
        return [activation(layer.name, "elu", _number(layer, config.get("alpha", 1.0)))]
    if layer.kind == "LeakyReLU":
        slope = config.get("negative_slope", config.get("alpha", 0.3))
        return [activation(layer.name, "leaky_relu", _number(layer, slope))]
    if config.get("max_value") is not None or config.get("threshold"):
        raise layer.refuse("has a max_value or a threshold, which cannot be served")
    if slope := config.get("negative_slope"):
        return [activation(layer.name, "leaky_relu", _number(layer, slope))]
    return [activation(layer.name, "relu")]


def _number(layer: Layer, value: Any) -> float:
    """Return a number; old Keras writes arrays as {"type": "ndarray", "value": 0.3}."""
    if isinstance(value, dict):
        value = value.get("value")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise layer.refuse(f"has {shown(value)} where a number is expected", AGAIN)
    return float(value)
