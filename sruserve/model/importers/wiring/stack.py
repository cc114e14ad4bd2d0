"""Recurrent layers, and the affine layers between them, as one stack of a model folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from sruserve.model.cells.gated import GatedConfig, GRUConfig, LSTMConfig, RNNConfig
from sruserve.model.errors import CheckpointError
from sruserve.model.importers.wiring.layers import Linear, Scale, Select, affine
from sruserve.model.importers.wiring.steps import Cell, Direction, Recurrent, Rows, tensor

_CONFIGS: dict[Cell, tuple[type[GatedConfig], dict[str, Any]]] = {
    "lstm": (LSTMConfig, {}),
    "gru": (GRUConfig, {}),
    "gru_reset_before": (GRUConfig, {"reset_after": False}),
    "rnn_tanh": (RNNConfig, {}),
    "rnn_relu": (RNNConfig, {"nonlinearity": "relu"}),
}


@dataclass(frozen=True, eq=False)
class BuiltStack:
    """A stack's config and tensors.

    layers: the recurrent layers as the file has them. A layer with one direction in a bidirectional
        stack has a backward direction of zeros, whose output is 0 at every step.
    """

    config: GatedConfig
    tensors: dict[str, Tensor]
    layers: list[Recurrent]

    @property
    def width(self) -> int:
        """Width of the last layer's output in the file."""
        return self.layers[-1].hidden * len(self.layers[-1].directions)

    @property
    def padded(self) -> bool:
        """Whether the last layer's output has columns of zeros after its own."""
        return self.config.output_size != self.width


def build_stack(steps: Sequence[Recurrent | Rows]) -> BuiltStack:
    """Return the stack; raises `CheckpointError` for layers that cannot be one."""
    layers = [step for step in steps if isinstance(step, Recurrent)]
    if odd := next((layer for layer in layers if layer.cell != layers[0].cell), None):
        raise CheckpointError(
            f"{layers[0].name} and {odd.name} are recurrent layers of two kinds "
            f"({layers[0].cell}, {odd.cell}), which cannot be one stack: save a network with one "
            "kind"
        )
    bidirectional = any(len(layer.directions) == 2 for layer in layers)
    tensors: dict[str, Tensor] = {}
    between: list[Rows] = []
    below: Recurrent | None = None
    for step in steps:
        if isinstance(step, Rows):
            if not isinstance(step.layer, Linear | Scale | Select):
                raise CheckpointError(
                    f"{step.name} ({step.layer.type}) is between recurrent layers; only linear "
                    "layers, batch norms and other scalings can be there: save the network "
                    "without it"
                )
            between.append(step)
            continue
        number = layers.index(step)
        directions = [
            _reading(step, each, below, between, bidirectional) for each in step.directions
        ]
        if bidirectional and len(directions) == 1:
            directions.append(_silent(directions[0]))
        for suffix, each in zip(("", "_reverse"), directions, strict=False):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                tensors[f"rnn.{name}_l{number}{suffix}"] = tensor(getattr(each, name))
        below, between = step, []
    sizes = [layer.hidden for layer in layers]
    kind, fields = _CONFIGS[layers[0].cell]
    config = kind(
        input_size=int(tensors["rnn.weight_ih_l0"].shape[1]),
        hidden_size=sizes[0] if len(set(sizes)) == 1 else tuple(sizes),
        num_layers=len(sizes),
        bidirectional=bidirectional,
        **fields,
    )
    return BuiltStack(config, tensors, layers)


def _reading(
    layer: Recurrent,
    direction: Direction,
    below: Recurrent | None,
    between: Sequence[Rows],
    bidirectional: bool,
) -> Direction:
    """Return weights that read the output of the layer `below`, with what is between folded in."""
    if below is None:
        return direction
    width = below.hidden * len(below.directions)
    weight, bias = direction.weight_ih, direction.bias_ih
    if between:
        folded = affine([*(step.layer for step in between), Linear(tensor(weight))], width)
        assert folded is not None
        weight, bias = folded[0].numpy(), bias + folded[1].numpy()
    if weight.shape[1] != width:
        raise CheckpointError(
            f"{layer.name} reads {weight.shape[1]} columns, but {below.name} has {width}: save the "
            "network again"
        )
    if bidirectional and len(below.directions) == 1:
        weight = np.concatenate((weight, np.zeros_like(weight)), 1)
    return Direction(weight, direction.weight_hh, bias, direction.bias_hh)


def _silent(direction: Direction) -> Direction:
    """Return a direction of zeros: every cell's output is then 0 at each step."""
    return Direction(
        np.zeros_like(direction.weight_ih),
        np.zeros_like(direction.weight_hh),
        np.zeros_like(direction.bias_ih),
        np.zeros_like(direction.bias_hh),
    )
