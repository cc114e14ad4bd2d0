"""Modules with the names and attributes of libraries, computed step by step by formulas."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.model.importers.formulas import lrn_repository_cell, qrnn_layer, sru_layer


class SRUCell(nn.Module):
    """A layer as of `sru` 2.6.0."""

    scale_x: Tensor

    def __init__(self, inputs: int, hidden: int, **options: Any) -> None:
        super().__init__()
        self.bidirectional = options.get("bidirectional", False)
        self.rescale = options.get("rescale", False)
        self.has_skip_term, self.normalize_after = True, False
        self.activation_type = int(options.get("use_tanh", False))
        outputs = hidden * (2 if self.bidirectional else 1)
        self.num_matrices = 3 if inputs == outputs else 4
        inner = options.get("projection_size", 0)
        inner = inner if inner < min(inputs, outputs) else 0
        self.weight_proj = nn.Parameter(torch.randn(inputs, inner) / 2) if inner else None
        rows = inner or inputs
        self.weight = nn.Parameter(torch.randn(rows, outputs * self.num_matrices) / rows**0.5)
        self.weight_c = nn.Parameter(torch.randn(2 * outputs) / 2)
        bias = options.get("highway_bias", 0.0)
        self.bias = nn.Parameter(torch.cat([torch.zeros(outputs), torch.full((outputs,), bias)]))
        scale = math.sqrt(1 + 2 * math.exp(bias)) if self.rescale else 1.0
        self.register_buffer("scale_x", torch.tensor([scale]))
        self.layer_norm = nn.LayerNorm(inputs) if options.get("layer_norm") else None

    def forward(self, x: Tensor) -> Tensor:
        """(steps, batch, in) to (steps, batch, out)."""
        normed = x if self.layer_norm is None else self.layer_norm(x)
        if self.weight_proj is not None:
            normed = normed @ self.weight_proj
        activation = "tanh" if self.activation_type else "identity"
        return torch.stack(
            [
                sru_layer(
                    row,
                    self.weight,
                    self.bias,
                    self.weight_c,
                    scale=self.scale_x.item() if self.rescale else 1.0,
                    activation=activation,
                    directions=1 + self.bidirectional,
                    residual=residual,
                )
                for row, residual in zip(normed.unbind(1), x.unbind(1), strict=True)
            ],
            1,
        )


class SRU(nn.Module):
    """Returns outputs (steps, batch, out) and, as c, zeros: no formula here keeps the states."""

    def __init__(self, inputs: int, hidden: int, num_layers: int = 2, **options: Any) -> None:
        super().__init__()
        self.output_size = hidden * (2 if options.get("bidirectional") else 1)
        first = options.pop("proj_input_to_hidden_first", False)
        self.input_to_hidden = nn.Linear(inputs, self.output_size, bias=False) if first else None
        inputs = self.output_size if first else inputs
        widths = [inputs, *[self.output_size] * (num_layers - 1)]
        self.rnn_lst = nn.ModuleList(SRUCell(width, hidden, **options) for width in widths)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.input_to_hidden is not None:
            x = self.input_to_hidden(x)
        for cell in self.rnn_lst:
            x = cell(x)
        return x, x.new_zeros(len(self.rnn_lst), x.shape[1], self.output_size)


class QRNNLayer(nn.Module):
    def __init__(self, inputs: int, hidden: int, window: int = 1) -> None:
        super().__init__()
        self.window, self.hidden_size, self.zoneout, self.output_gate = window, hidden, 0, True
        self.linear = nn.Linear(window * inputs, 3 * hidden)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.linear.weight, self.linear.bias
        return torch.stack([qrnn_layer(row, weight, bias, self.window) for row in x.unbind(1)], 1)


class QRNN(nn.Module):
    """As of `torchqrnn`; its states are zeros, as above."""

    def __init__(self, inputs: int, hidden: int, layers: list[QRNNLayer]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.input_size, self.hidden_size, self.num_layers = inputs, hidden, len(layers)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            x = layer(x)
        return x, x.new_zeros(self.num_layers, x.shape[1], self.hidden_size)


class LRNCell(nn.Module):
    """Parameters of a cell of the LRN repository."""

    def __init__(self, kind: str, inputs: int, hidden: int) -> None:
        super().__init__()
        joined = inputs + hidden
        shapes = {
            "lstm": {"_W": (joined, 4 * hidden), "_b": (4 * hidden,)},
            "gru": {
                "_W": (joined, 2 * hidden),
                "_W_b": (2 * hidden,),
                "_U": (joined, hidden),
                "_U_b": (hidden,),
            },
            "atr": {
                "_W": (inputs, hidden),
                "_W_b": (hidden,),
                "_U": (hidden, hidden),
                "_U_b": (hidden,),
            },
            "lrn": {"_W": (inputs, 3 * hidden), "_W_b": (3 * hidden,)},
            "sru": {
                "_W": (inputs, 4 * hidden),
                "_W_b": (4 * hidden,),
                "_Vf": (hidden,),
                "_Vr": (hidden,),
            },
        }
        for name, shape in shapes[kind].items():
            setattr(self, name, nn.Parameter(torch.randn(shape) / 3))


class LRNLike(nn.Module):
    """As the `RNN` of the LRN repository, which starts from random states unless it gets others."""

    def __init__(self, kind: str, inputs: int, hidden: int, num_layers: int) -> None:
        super().__init__()
        self.kind, self.hidden_size, self.num_layers = kind, hidden, num_layers
        self.c_on = kind in ("lstm", "sru")
        for layer in range(num_layers):
            setattr(self, f"cell_{layer}", LRNCell(kind, hidden if layer else inputs, hidden))
        self.dropout_layer = nn.Dropout(0.1)

    def forward(self, x: Tensor, h: Any = None) -> tuple[Tensor, Any]:
        for layer in range(self.num_layers):
            cell = dict(getattr(self, f"cell_{layer}").named_parameters())
            rows = [lrn_repository_cell(self.kind, cell, row) for row in x.unbind(1)]
            x = torch.stack(rows, 1)
        return x, h
