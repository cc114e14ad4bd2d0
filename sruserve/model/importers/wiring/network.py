"""A network as its layers in order, as parts of a model folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from sruserve.model.cells.stack import StackConfig
from sruserve.model.embeddings import EmbeddingConfig
from sruserve.model.errors import CheckpointError
from sruserve.model.heads.config import HeadConfig
from sruserve.model.heads.row_layers import RowLayer, RowLayers
from sruserve.model.importers.format import Imported
from sruserve.model.importers.wiring.layers import (
    Activation,
    Layer,
    Layers,
    Linear,
    Norm,
    Residual,
    Scale,
    Select,
    affine,
    fused,
    ranges_of,
    width_after,
)
from sruserve.model.names import Task

_ROW_LAYERS: TypeAdapter[tuple[RowLayer, ...]] = TypeAdapter(RowLayers)


@dataclass(frozen=True, slots=True)
class End:
    """A part of the end state: `kind` h or c of a layer; a direction's `width` columns."""

    layer: int
    kind: str
    direction: int
    width: int


@dataclass(frozen=True, eq=False, slots=True)
class Pooling:
    """One row for a sequence, by its kind in a model folder.

    ends: of kind "final". attention: of kind "attention", the layers that score a step.
    """

    kind: str
    ends: tuple[End, ...] = ()
    attention: Layers = ()


@dataclass(frozen=True, eq=False)
class Network:
    """A network as the layers that a row passes through, in order.

    stack: the stack's tensors, with the names of a model folder.
    width: of the embedding's rows, or of the features. table: the embedding's rows.
    inputs: layers before the stack. layers: those after the pooling, or after every step.
    pooling: those whose rows are side by side; empty for a result at every step.
    """

    rnn: StackConfig
    stack: Mapping[str, Tensor]
    width: int
    table: Tensor | None = None
    inputs: Layers = ()
    pooling: tuple[Pooling, ...] = ()
    layers: Layers = ()


def parts_of(network: Network, task: Task) -> Imported:
    """Return the network as parts of a model folder; the last linear layer is its output.

    Raises `ValidationError` or `CheckpointError` for layers that no folder has.
    """
    tensors = dict(network.stack)
    inputs, embedding = fused(network.inputs), EmbeddingConfig()
    if network.table is not None:
        tensors["embedding.weight"] = network.table
        if inputs and isinstance(first := inputs[0], Scale) and _is_factor(first):
            embedding = EmbeddingConfig(scale=float(first.weight))
            inputs = inputs[1:]
    input_layers = row_layers(inputs, network.width, "input_layers.", tensors)
    head = HeadConfig() if task == "encode" else _head(network, task, tensors)
    return Imported(
        {name: tensor.detach().float().contiguous() for name, tensor in tensors.items()},
        network.rnn,
        None if network.table is None else len(network.table),
        embedding,
        head,
        input_width=None if network.width == network.rnn.input_size else network.width,
        input_layers=input_layers,
        steps="last" if network.pooling else "every",
    )


def row_layers(
    layers: Layers, width: int, prefix: str, tensors: dict[str, Tensor]
) -> tuple[RowLayer, ...]:
    """Return the config of layers over rows of `width`, and add their tensors as float32.

    prefix: of the tensors' names. Raises as `parts_of`.
    """
    own: dict[str, Tensor] = {}
    configs = _ROW_LAYERS.validate_python(_described(fused(layers), width, prefix, own))
    tensors |= {name: tensor.detach().float().contiguous() for name, tensor in own.items()}
    return configs


def _is_factor(layer: Scale) -> bool:
    """Whether a scale only multiplies by one positive number."""
    plain = not layer.mean.any() and not layer.bias.any()
    return plain and layer.weight.numel() == 1 and bool(layer.weight > 0)


def _head(network: Network, task: Task, tensors: dict[str, Tensor]) -> HeadConfig:
    """Return the config of what follows the stack, and add its tensors."""
    layers, kinds = network.layers, [pooling.kind for pooling in network.pooling]
    fields: dict[str, Any] = {}
    columns: list[int] = []
    width = 0
    for pooling in network.pooling:
        own = network.rnn.output_size
        picked = list(range(own))
        if pooling.kind == "attention":
            attention = fused(pooling.attention)
            fields["attention"] = _described(attention, own, "pool.", tensors)
        if pooling.kind == "final":
            fields["final"], picked, own = _final(pooling.ends, network.rnn)
        columns += [width + column for column in picked]
        width += own
    if kinds:
        fields["pooling"] = kinds if len(kinds) > 1 else kinds[0]
    if columns != list(range(width)):
        layers = (Select(ranges_of(columns)), *layers)
    width = width or network.rnn.output_size
    layers, output = _split(fused(layers), width)
    fields["layers"] = _described(layers, width, "head.", tensors)
    tied = task == "generate" and network.table is not None
    tied = tied and torch.equal(network.table, output.weight)  # type: ignore[arg-type]
    if not tied:
        tensors["output.weight"] = output.weight
    if output.bias is not None:
        tensors["output.bias"] = output.bias
    return HeadConfig.model_validate(fields | {"tied": tied, "bias": output.bias is not None})


def _final(ends: Sequence[End], rnn: StackConfig) -> tuple[list[str], list[int], int]:
    """Return the entries of the end state, the columns of `ends` in them, and their width."""
    sizes = {name: shape[0] for name, shape in rnn.states() if len(shape) == 1}
    starts: dict[str, int] = {}
    columns: list[int] = []
    width = 0
    for end in ends:
        name = f"{end.layer}.{end.kind}"
        if name not in starts:
            starts[name] = width
            width += sizes.get(name, 0)  # the config refuses a name that the state does not have
        begin = starts[name] + end.direction * end.width
        columns += range(begin, begin + end.width)
    return list(starts), columns, width


def _split(layers: Layers, width: int) -> tuple[Layers, Linear]:
    """Return the layers before the last linear one, and that; affine layers after it are folded."""
    end = len(layers)
    while end and isinstance(layers[end - 1], Scale | Select):
        end -= 1
    if end and isinstance(output := layers[end - 1], Linear):
        if end == len(layers):
            return layers[:-1], output
        folded = affine(layers[end - 1 :], width_after(layers[: end - 1], width))
        assert folded is not None
        return layers[: end - 1], Linear(folded[0].float(), folded[1].float())
    return layers, Linear(torch.eye(width_after(layers, width)))


def _described(
    layers: Sequence[Layer], width: int, prefix: str, tensors: dict[str, Tensor]
) -> list[dict[str, Any]]:
    """Return the config of layers over rows of `width`, and add their tensors."""
    configs: list[dict[str, Any]] = []
    for i, layer in enumerate(layers):
        name = f"{prefix}{i}."
        config: dict[str, Any] = {"type": layer.type}
        if isinstance(layer, Linear):
            tensors[f"{name}weight"] = layer.weight
            if layer.bias is not None:
                tensors[f"{name}bias"] = layer.bias
            config |= {"size": len(layer.weight), "bias": layer.bias is not None}
        elif isinstance(layer, Norm):
            tensors |= {f"{name}weight": layer.weight, f"{name}bias": layer.bias}
            config["eps"] = layer.eps
        elif isinstance(layer, Scale):
            for part in ("mean", "weight", "bias"):
                tensors[name + part] = getattr(layer, part).expand(width)
        elif isinstance(layer, Activation):
            config |= {"function": layer.function, "slope": layer.slope}
        elif isinstance(layer, Residual):
            config["layers"] = _described(fused(layer.layers), width, name, tensors)
        elif isinstance(layer, Select):
            config["ranges"] = layer.ranges
        else:
            raise CheckpointError(
                "a softmax must be the last operation of the network: save the network without "
                "what follows it"
            )
        width = width_after([layer], width)
        configs.append(config)
    return configs
