"""Transformer + SRU in plain torch, with the parameter names of `flambe.nn.TransformerSRU`."""

import math
from typing import Any

import torch
from torch import Tensor, nn

Memory = tuple[Tensor, ...]  # the encoder's outputs, (batch, steps, width), and what else is kept


class SRUCell(nn.Module):
    """One layer of `sru` 2.6.0 without a highway: its parameters, in plain torch."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = math.sqrt(3 / inputs)
        self.weight = nn.Parameter(torch.empty(inputs, 3 * outputs).uniform_(-bound, bound))
        self.weight_c = nn.Parameter(torch.empty(2 * outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(2 * outputs))
        self.register_buffer("scale_x", torch.ones(1))  # of a highway, which there is none of

    def forward(self, x: Tensor) -> Tensor:
        """Run x (batch, steps, inputs); returns (batch, steps, outputs)."""
        u = (x @ self.weight).view(*x.shape[:2], -1, 3)
        (v_f, v_r), (b_f, b_r) = self.weight_c.chunk(2), self.bias.chunk(2)
        c, outputs = torch.zeros_like(u[:, 0, :, 0]), []
        for step in range(x.shape[1]):
            z, u_f, u_r = u[:, step].unbind(2)
            f, r = (u_f + v_f * c + b_f).sigmoid(), (u_r + v_r * c + b_r).sigmoid()
            c = z + (c - z) * f
            outputs.append(r * c)
        return torch.stack(outputs, 1)


class EncoderLayer(nn.Module):
    """Attention to the source, then the SRU; each sum is normalized."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(width, heads, dropout, batch_first=True)
        self.sru = SRUCell(width, inner)
        self.linear2 = nn.Linear(inner, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """Run x (batch, steps, width); padding (batch, steps) is true after the source."""
        mixed = self.self_attn(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        x = self.norm1(x + self.drop(mixed))
        y: Tensor = self.norm2(x + self.drop(self.linear2(self.drop(self.sru(x)))))
        return y


class DecoderLayer(nn.Module):
    """Attention to the steps so far, attention to the source, then the SRU."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(width, heads, dropout, batch_first=True)
        self.multihead_attn = nn.MultiheadAttention(width, heads, dropout, batch_first=True)
        self.sru = SRUCell(width, inner)
        self.linear2 = nn.Linear(inner, width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, padding: Tensor, later: Tensor) -> Tensor:
        """Run x (batch, steps, width); later (steps, steps) is true where a step comes later."""
        mixed = self.self_attn(x, x, x, attn_mask=later, need_weights=False)[0]
        x = self.norm1(x + self.drop(mixed))
        mixed = self.multihead_attn(
            x, memory, memory, key_padding_mask=padding, need_weights=False
        )[0]
        x = self.norm2(x + self.drop(mixed))
        y: Tensor = self.norm3(x + self.drop(self.linear2(self.drop(self.sru(x)))))
        return y


class Side(nn.Module):
    """The layers of one side, under the name `layers`."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)


class TransformerSRU(nn.Module):
    """Embeddings with sinusoidal positions, encoder, decoder, and an output layer tied to them."""

    def __init__(
        self, size: int, width: int, heads: int, inner: int, layers: int, dropout: float
    ) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(size, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        options = (width, heads, inner, dropout)
        self.encoder = Side([EncoderLayer(*options) for _ in range(layers)])
        self.decoder = Side([DecoderLayer(*options) for _ in range(layers)])
        self.output_bias = nn.Parameter(torch.zeros(size))
        self.drop = nn.Dropout(dropout)

    def encode(self, source: Tensor, padding: Tensor) -> Memory:
        """Return the encoder's outputs, for a padded source (batch, steps)."""
        x = self._inputs(source)
        for layer in self.encoder.layers:
            x = layer(x, padding)
        return (x,)

    def decode(self, memory: Memory, padding: Tensor, target: Tensor) -> Tensor:
        """Return the scores of the ids after each of `target`."""
        (outputs,), steps = memory, target.shape[1]
        later = torch.ones(steps, steps, dtype=torch.bool).triu(1)
        x = self._inputs(target)
        for layer in self.decoder.layers:
            x = layer(x, outputs, padding, later)
        return x @ self.embedding.weight.T + self.output_bias

    def _inputs(self, ids: Tensor) -> Tensor:
        width = self.embedding.embedding_dim
        x: Tensor = self.drop(self.embedding(ids) * width**0.5 + positions(ids.shape[1], width))
        return x

    def checkpoint(self) -> dict[str, Tensor]:
        """The state dict under the names that `sruserve import --format flambe` knows."""
        own = self.state_dict()
        table, bias = own.pop("embedding.weight"), own.pop("output_bias")
        return own | {"embedding.weight": table, "output.weight": table, "output.bias": bias}

    def options(self) -> dict[str, Any]:
        """What an import has to know besides the weights."""
        return {
            "nhead": self.heads,
            "release": "2.6.0",
            "embedding_scale": self.embedding.embedding_dim**0.5,
            "positions": "sinusoidal",
        }


def positions(count: int, width: int) -> Tensor:
    """The sinusoidal encodings of the first positions, (count, width)."""
    position = torch.arange(count).float()[:, None]
    angle = position * (torch.arange(0, width, 2).float() * -(math.log(10000.0) / width)).exp()
    return torch.stack((angle.sin(), angle.cos()), 2).flatten(1)
