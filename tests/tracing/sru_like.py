"""Modules with the names and attributes of `sru` 2.6.0, computed step by step."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.model.importers.formulas import sru_layer


class SRUCell(nn.Module):
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
