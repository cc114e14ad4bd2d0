"""Convert each cell of the LRN repository's lm/code/rnn.py to a stack.

There, x and h are to the left of a matrix, and a cell's gates are blocks of its columns.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from sruserve.model.cells.gated import ATRConfig, GRUConfig, LSTMConfig
from sruserve.model.cells.lrn import LRNConfig
from sruserve.model.cells.sru import SRUConfig
from sruserve.model.cells.stack import StackConfig
from sruserve.model.errors import CheckpointError
from sruserve.model.importers.format import Options
from sruserve.model.importers.options import flag, make
from sruserve.model.importers.tensors import MISFIT, check_names, need

Kind = Literal["lstm", "gru", "atr", "lrn", "sru"]
Layers = Sequence[Mapping[str, Tensor]]
Read = Callable[[Layers, Options], tuple[dict[str, Tensor], StackConfig]]


def kind_of(cell: Mapping[str, Tensor]) -> Kind:
    """Return the kind of cell that has tensors of these names."""
    if "_b" in cell:
        return "lstm"
    if "_Vf" in cell or "_Vr" in cell:
        return "sru"
    if "_U" not in cell:
        return "lrn"
    return "gru" if need(cell, "_W", 2).shape[1] != need(cell, "_U", 2).shape[1] else "atr"


def _lrn(layers: Layers, options: Options) -> tuple[dict[str, Tensor], StackConfig]:
    """[p | q | r] = x W + b, as in `LRNConfig`; an oLRN has a fourth block, o."""
    blocks = 4 if flag(options, "output_gate", False) else 3
    weights = [_parts(cell, i, ("_W", "_W_b"), blocks) for i, cell in enumerate(layers)]
    tensors: dict[str, Tensor] = {}
    for i, (weight, bias) in enumerate(weights):
        tensors |= {f"rnn.layers.{i}.weight": weight, f"rnn.layers.{i}.bias": bias}
    own = {"activation": options.get("activation", "tanh"), "output_gate": blocks == 4}
    return tensors, make(LRNConfig, _sizes(weights, blocks) | own)


def _sru(layers: Layers, options: Options) -> tuple[dict[str, Tensor], StackConfig]:
    """Blocks f, c, r, h, each with a bias; `SRUConfig` has c, f, r, h within a channel."""
    del options
    weights = [
        _parts(cell, i, ("_W", "_W_b", "_Vf", "_Vr"), 4)[:2] for i, cell in enumerate(layers)
    ]
    tensors: dict[str, Tensor] = {}
    for i, (weight, bias) in enumerate(weights):
        width = len(bias) // 4
        order = torch.tensor([1, 0, 2, 3])
        own = {
            "weight": weight.view(len(weight), 4, width)[:, order].transpose(1, 2).flatten(1),
            "block_bias": bias.view(4, width)[order].T.flatten(),
            "weight_c": torch.cat([_vector(layers[i], name, width) for name in ("_Vf", "_Vr")]),
            "bias": torch.zeros(2 * width),
            "scale_x": torch.ones(1),
        }
        tensors |= {f"rnn.rnn_lst.{i}.{name}": tensor for name, tensor in own.items()}
    fields = _sizes(weights, 4)
    if isinstance(fields["hidden_size"], tuple):
        raise CheckpointError(
            "SRU cells of different widths cannot be one stack: import a checkpoint with one "
            "hidden_size"
        )
    return tensors, make(SRUConfig, fields | {"biased_blocks": True, "highway_block": True})


def _lstm(layers: Layers, options: Options) -> tuple[dict[str, Tensor], StackConfig]:
    """Blocks i, f, o, g over [x, h]; torch has i, f, g, o."""
    del options
    weights = [_parts(cell, i, ("_W", "_b"), 4) for i, cell in enumerate(layers)]
    tensors: dict[str, Tensor] = {}
    order = torch.tensor([0, 1, 3, 2])
    for i, (weight, bias) in enumerate(weights):
        width = len(bias) // 4
        turned = weight.T.reshape(4, width, -1)[order].flatten(0, 1)
        tensors |= _gated(i, turned, width, bias.view(4, width)[order].flatten())
    return tensors, make(LSTMConfig, _sizes(weights, 4, recurrent=True))


def _gru(layers: Layers, options: Options) -> tuple[dict[str, Tensor], StackConfig]:
    """Gates r, u over [x, h], candidate n over [x, r h]; h = u h' + (1 - u) n: u is torch's z."""
    del options
    weights = []
    for i, cell in enumerate(layers):
        gates, gate_bias = _parts(cell, i, ("_W", "_W_b", "_U", "_U_b"), 2)
        width = len(gate_bias) // 2
        candidate, bias = need(cell, "_U", 2), _vector(cell, "_U_b", width)
        if candidate.shape != (len(gates), width):
            raise CheckpointError(
                f"cell {i}: _U has shape {list(candidate.shape)}, not {[len(gates), width]}: "
                f"{MISFIT}"
            )
        weights.append((torch.cat([gates, candidate], 1), torch.cat([gate_bias, bias])))
    tensors: dict[str, Tensor] = {}
    for i, (weight, bias) in enumerate(weights):
        tensors |= _gated(i, weight.T, len(bias) // 3, bias)
    return tensors, make(GRUConfig, _sizes(weights, 3, recurrent=True) | {"reset_after": False})


def _atr(layers: Layers, options: Options) -> tuple[dict[str, Tensor], StackConfig]:
    """p = x W + b and q = h U + b_u, with one matrix each."""
    tensors: dict[str, Tensor] = {}
    weights = []
    for i, cell in enumerate(layers):
        weight, bias = _parts(cell, i, ("_W", "_W_b", "_U", "_U_b"), 1)
        square, width = need(cell, "_U", 2), len(bias)
        if square.shape != (width, width):
            raise CheckpointError(
                f"cell {i}: _U has shape {list(square.shape)}, not {[width] * 2}: {MISFIT}"
            )
        weights.append((weight, bias))
        both = torch.cat([weight, square]).T
        tensors |= _gated(i, both, width, bias, _vector(cell, "_U_b", width))
    own = {"activation": options.get("activation", "tanh")}
    return tensors, make(ATRConfig, _sizes(weights, 1) | own)


CELLS: dict[Kind, Read] = {"lstm": _lstm, "gru": _gru, "atr": _atr, "lrn": _lrn, "sru": _sru}


def _parts(
    cell: Mapping[str, Tensor], index: int, names: tuple[str, ...], blocks: int
) -> tuple[Tensor, Tensor]:
    """Return a cell's first matrix and bias, whose columns are `blocks` blocks of equal width."""
    where = f"cell {index}: "
    check_names(cell, names, where)
    weight, bias = need(cell, names[0], 2, where), need(cell, names[1], 1, where)
    if len(bias) % blocks or weight.shape[1] != len(bias):
        raise CheckpointError(
            f"{where}{names[0]} has shape {list(weight.shape)} and {names[1]} {list(bias.shape)}: "
            f"they must have the same number of columns, a multiple of {blocks}: {MISFIT}"
        )
    return weight, bias


def _vector(cell: Mapping[str, Tensor], name: str, width: int) -> Tensor:
    vector = need(cell, name, 1)
    if len(vector) != width:
        raise CheckpointError(f"{name} has shape {list(vector.shape)}, not {[width]}: {MISFIT}")
    return vector


def _gated(
    index: int, weight: Tensor, width: int, bias: Tensor, recurrent_bias: Tensor | None = None
) -> dict[str, Tensor]:
    """Return a layer by torch's names; weight: (blocks * width, in + width), h's columns last."""
    return {
        f"rnn.weight_ih_l{index}": weight[:, :-width].contiguous(),
        f"rnn.weight_hh_l{index}": weight[:, -width:].contiguous(),
        f"rnn.bias_ih_l{index}": bias,
        f"rnn.bias_hh_l{index}": torch.zeros_like(bias)
        if recurrent_bias is None
        else recurrent_bias,
    }


def _sizes(
    weights: Sequence[tuple[Tensor, Tensor]], blocks: int, recurrent: bool = False
) -> dict[str, object]:
    """Return input and hidden sizes. recurrent: the last rows of the matrices multiply h."""
    widths = tuple(len(bias) // blocks for _, bias in weights)
    rows = len(weights[0][0])
    same = len(set(widths)) == 1
    return {
        "input_size": rows - widths[0] if recurrent else rows,
        "hidden_size": widths[0] if same else widths,
        "num_layers": len(weights),
    }
