"""Recurrent modules of known libraries: how to recognise them, and how they are called.

`sru`, `torchqrnn` and others need not be installed here: their modules are recognised by their
attributes, and the comparison of answers refuses one that only looks alike.
"""

from dataclasses import dataclass
from typing import Any, Literal, cast

from torch import nn

Family = Literal["torch", "sru", "srupp", "qrnn", "lrn"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One recurrent module.

    layers, directions: their numbers. output_size: features of its output, of all directions.
    kinds: kind and width of each end state that it returns, of one direction if `each_direction`,
        else of all.
    batch_first: whether its inputs and outputs begin with the batch.
    """

    module: nn.Module
    family: Family
    layers: int
    directions: int
    output_size: int
    kinds: tuple[tuple[str, int], ...]
    each_direction: bool
    batch_first: bool


def stage_of(module: nn.Module) -> Stage | None:
    """Return how a module is used, or None if it is no recurrent module that can be served."""
    if isinstance(module, nn.LSTM | nn.GRU | nn.RNN):
        return _torch(module)
    layers = getattr(module, "rnn_lst", None)
    if isinstance(layers, nn.ModuleList) and len(layers) and _is_sru(layers):
        return _sru(module, layers)
    layers = getattr(module, "layers", None)
    if isinstance(layers, nn.ModuleList) and len(layers) and all(map(_is_qrnn, layers)):
        width = int(cast("Any", layers[-1]).hidden_size)
        return Stage(module, "qrnn", len(layers), 1, width, (("c", width),), True, False)
    if hasattr(getattr(module, "cell_0", None), "_W"):
        return _lrn(module, list(module.children()))
    return None


def _torch(module: nn.LSTM | nn.GRU | nn.RNN) -> Stage | None:
    if not any(type(module).forward is kind.forward for kind in (nn.LSTM, nn.GRU, nn.RNN)):
        return None  # a class of the user's own, with other maths
    width, directions = module.proj_size or module.hidden_size, 1 + module.bidirectional
    kinds: tuple[tuple[str, int], ...] = (("h", width),)
    if isinstance(module, nn.LSTM):
        kinds += (("c", module.hidden_size),)
    return Stage(
        module=module,
        family="torch",
        layers=module.num_layers,
        directions=directions,
        output_size=width * directions,
        kinds=kinds,
        each_direction=True,
        batch_first=module.batch_first,
    )


def _is_sru(layers: nn.ModuleList) -> bool:
    return all(hasattr(cell, "bias") and hasattr(cell, "bidirectional") for cell in layers)


def _sru(module: nn.Module, layers: nn.ModuleList) -> Stage:
    transform = getattr(layers[0], "transform_module", None)
    directions = 1 + bool(layers[0].bidirectional)
    outputs = len(cast("Any", layers[-1]).bias) // 2
    compatible = bool(getattr(module, "nn_rnn_compatible_return", False))
    return Stage(
        module=module,
        family="srupp" if hasattr(transform, "linear1") else "sru",
        layers=len(layers),
        directions=directions,
        output_size=outputs,
        kinds=(("c", outputs // directions if compatible else outputs),),
        each_direction=compatible,
        batch_first=False,
    )


def _is_qrnn(layer: nn.Module) -> bool:
    return isinstance(getattr(layer, "linear", None), nn.Linear) and hasattr(layer, "window")


def _lrn(module: nn.Module, cells: list[nn.Module]) -> Stage | None:
    hidden = getattr(module, "hidden_size", None)
    cells = [cell for cell in cells if hasattr(cell, "_W")]
    if not isinstance(hidden, int):
        return None
    kinds: tuple[tuple[str, int], ...] = (("h", hidden),)
    if getattr(module, "c_on", False):
        kinds += (("c", hidden),)
    first = bool(getattr(module, "batch_first", False))
    return Stage(module, "lrn", len(cells), 1, hidden, kinds, True, first)
