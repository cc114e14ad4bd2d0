"""Convert both directions of a cell in the LRN repository's doc/code/rnns to a stack.

There, x and h are to the left of a matrix, and a cell's gates are blocks of its columns.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from sruserve.model.cells.gated import ATRConfig, GatedConfig, GRUConfig, LSTMConfig
from sruserve.model.cells.lrn import LRNConfig
from sruserve.model.cells.sru import SRUConfig
from sruserve.model.cells.stack import StackConfig
from sruserve.model.errors import CheckpointError
from sruserve.model.importers.lrn_tf.variables import ADVICE, Variables
from sruserve.model.importers.options import make

LAYER = "hierarchy/word_level/rnn_enc_layer_0/"
_DIRECTIONS = (f"{LAYER}fw_rnn/", f"{LAYER}bw_rnn/")
_FORWARD = _DIRECTIONS[0]
# The linear layers of each cell, with their numbers of blocks: those of x, then those of h.
_LINEARS: dict[str, tuple[dict[str, int], dict[str, int]]] = {
    "lrn": ({"hide_x": 3}, {}),
    "sru": ({"hide_x": 4}, {}),
    "atr": ({"hide_x": 1}, {"hide_h": 1}),
    "gru": ({"gate_x": 2, "hide_x": 1}, {"gate_h": 2, "hide_h": 1}),
    "lstm": ({"gate_x": 3, "hide_x": 1}, {"gate_h": 3, "hide_h": 1}),
}
_VECTORS = ("v_f", "v_r")  # of an SRU
Linear = tuple[Tensor, Tensor]  # weight (in, out) and bias (out)
Built = tuple[dict[str, Tensor], StackConfig]


def kind_of(names: Iterable[str]) -> str:
    """Return the cell whose variables these are, or raise `CheckpointError`."""
    names = set(names)
    kinds = [kind for kind in _LINEARS if f"{_FORWARD}fetch_state_{kind}/hide_x/W_0_0" in names]
    if len(kinds) != 1:
        raise CheckpointError(
            f"{LAYER} has the variables of {' and '.join(kinds) or 'no cell'}; it must have those "
            f"of one, {', '.join(_LINEARS)}. {ADVICE}"
        )
    return kinds[0]


def names_of(kind: str) -> set[str]:
    """Return the names of a cell's variables, of both directions."""
    names = []
    for own in _DIRECTIONS:
        for place, linears in zip(("fetch_state", "cell"), _LINEARS[kind], strict=True):
            for linear in linears:
                names += [f"{own}{place}_{kind}/{linear}/{end}" for end in ("W_0_0", "b_0")]
        names += [f"{own}cell_sru/{vector}" for vector in _VECTORS if kind == "sru"]
    return set(names)


def stack(variables: Variables, kind: str, inputs: int) -> Built:
    """Return a stack's tensors, by a folder's names, and its config."""
    blocks = sum(_LINEARS[kind][0].values())
    biases = [f"{_FORWARD}fetch_state_{kind}/{name}/b_0" for name in _LINEARS[kind][0]]
    width = sum(map(variables.size, biases)) // blocks
    sizes = {
        "input_size": inputs,
        "hidden_size": width,
        "num_layers": 1,
        "bidirectional": True,
    }
    of_x = [
        _linear(variables, f"{own}fetch_state_{kind}/", kind, 0, inputs, width)
        for own in _DIRECTIONS
    ]
    if kind == "lrn":
        return _lrn(of_x, width), make(LRNConfig, sizes)
    if kind == "sru":
        vectors = [
            variables.read(f"{own}cell_sru/{name}", 1, width).flatten()
            for name in _VECTORS
            for own in _DIRECTIONS
        ]
        own = {"biased_blocks": True, "highway_block": True}
        return _sru(of_x, vectors, width), make(SRUConfig, sizes | own)
    of_h = [_linear(variables, f"{own}cell_{kind}/", kind, 1, width, width) for own in _DIRECTIONS]
    order, config, options = _GATED[kind]
    tensors: dict[str, Tensor] = {}
    for end, x, h in zip(("", "_reverse"), of_x, of_h, strict=True):
        for part, (weight, bias) in (("ih", x), ("hh", h)):
            places = torch.tensor(order)
            turned = weight.T.reshape(len(order), width, -1)[places].flatten(0, 1)
            tensors[f"rnn.weight_{part}_l0{end}"] = turned.contiguous()
            tensors[f"rnn.bias_{part}_l0{end}"] = bias.view(-1, width)[places].flatten()
    return tensors, make(config, sizes | options)


# Where torch's blocks are among these: an LSTM has i, f, o and then g, a GRU z, r and then n.
_GATED: dict[str, tuple[list[int], type[GatedConfig], dict[str, object]]] = {
    "atr": ([0], ATRConfig, {}),
    "gru": ([1, 0, 2], GRUConfig, {"reset_after": False}),
    "lstm": ([0, 1, 3, 2], LSTMConfig, {}),
}


def _linear(
    variables: Variables, scope: str, kind: str, part: int, rows: int, width: int
) -> Linear:
    """Return all linear layers of x, or of h, side by side."""
    weights, biases = [], []
    for name, blocks in _LINEARS[kind][part].items():
        weights.append(variables.read(f"{scope}{name}/W_0_0", rows, blocks * width))
        biases.append(variables.read(f"{scope}{name}/b_0", blocks * width))
    return torch.cat(weights, 1), torch.cat(biases)


def _beside(linears: list[Linear], width: int, arrange: Callable[[Tensor], Tensor]) -> Linear:
    """Return both directions' columns, as `arrange` orders (rows, directions, blocks, width)."""
    weights = torch.stack([weight.view(len(weight), -1, width) for weight, _ in linears], 1)
    biases = torch.stack([bias.view(-1, width) for _, bias in linears])[None]
    return arrange(weights).flatten(1).contiguous(), arrange(biases).flatten().contiguous()


def _lrn(linears: list[Linear], width: int) -> dict[str, Tensor]:
    """Blocks p, q, r, each with both directions, as in `LRNConfig`."""
    weight, bias = _beside(linears, width, lambda x: x.transpose(1, 2))
    return {"rnn.layers.0.weight": weight, "rnn.layers.0.bias": bias}


def _sru(linears: list[Linear], vectors: list[Tensor], width: int) -> dict[str, Tensor]:
    """Blocks r, f, c, h; `SRUConfig` has c, f, r, h within a channel."""
    order = torch.tensor([2, 1, 0, 3])
    weight, bias = _beside(linears, width, lambda x: x[:, :, order].transpose(2, 3))
    own = {
        "weight": weight,
        "block_bias": bias,
        "weight_c": torch.cat(vectors),
        "bias": torch.zeros(4 * width),
        "scale_x": torch.ones(1),
    }
    return {f"rnn.rnn_lst.0.{name}": tensor for name, tensor in own.items()}
