"""An SRU that reads, an SRU that writes, and attention, in plain torch with OpenNMT-py's names."""

from typing import Any

import torch
from torch import Tensor, nn

from examples.translation_model import Memory


class SRULayer(nn.Module):
    """One layer of the SRU's first release, with tanh: its gates read no state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        bound = (3 / width) ** 0.5
        self.weight = nn.Parameter(torch.empty(width, 3 * width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(2 * width))

    def forward(self, x: Tensor, c: Tensor, padding: Tensor | None) -> tuple[Tensor, Tensor]:
        """Run x (batch, steps, width) from c (batch, width); returns h like x, and the last c.

        padding (batch, steps) is true after the source, where c stays.
        """
        z, u_f, u_r = (x @ self.weight).view(*x.shape[:2], -1, 3).unbind(3)
        b_f, b_r = self.bias.chunk(2)
        f, r = (u_f + b_f).sigmoid(), (u_r + b_r).sigmoid()
        if padding is not None:
            f = f.masked_fill(padding[:, :, None], 1)
        states = []
        for f_t, new in zip(f.unbind(1), ((1 - f) * z).unbind(1), strict=True):
            c = f_t * c + new
            states.append(c)
        return r * torch.stack(states, 1).tanh() + (1 - r) * x, c


class Stack(nn.Module):
    """The layers of one side, under the name `rnn_lst`."""

    def __init__(self, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.rnn_lst = nn.ModuleList(SRULayer(width) for _ in range(layers))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, c: Tensor, padding: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Run x (batch, steps, width) from c (layers, batch, width); returns both after them."""
        last = []
        for layer, before in zip(self.rnn_lst, c, strict=True):
            x, after = layer(self.drop(x), before, padding)
            last.append(after)
        return x, torch.stack(last)


class Attention(nn.Module):
    """Luong et al. 2015, `general`: h̃ = tanh(W [context; h])."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear_in = nn.Linear(width, width, bias=False)
        self.linear_out = nn.Linear(2 * width, width, bias=False)

    def forward(self, h: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        """Return h̃ (batch, steps, width) for the decoder's h, the same shape."""
        scores = self.linear_in(h) @ memory.transpose(1, 2)
        shares = scores.masked_fill(padding[:, None], -torch.inf).softmax(2)
        mixed: Tensor = self.linear_out(torch.cat((shares @ memory, h), 2)).tanh()
        return mixed


class RecurrentSRU(nn.Module):
    """One embedding of both sides and the output; the decoder begins where the encoder ended.

    The encoder reads from left to right, so what it has read of a source never changes.
    """

    def __init__(self, size: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.encoder, self.decoder = (Stack(width, layers, dropout) for _ in range(2))
        self.attention = Attention(width)
        self.output_bias = nn.Parameter(torch.zeros(size))
        self.drop = nn.Dropout(dropout)

    def encode(self, source: Tensor, padding: Tensor) -> Memory:
        """Return the encoder's outputs and its layers' last c, for a padded source."""
        x = self.embedding(source)
        zeros = x.new_zeros(len(self.encoder.rnn_lst), len(x), x.shape[2])
        memory: Memory = self.encoder(x, zeros, padding)
        return memory

    def decode(self, memory: Memory, padding: Tensor, target: Tensor) -> Tensor:
        """Return the scores of the ids after each of `target`."""
        outputs, states = memory
        h, _ = self.decoder(self.embedding(target), states)
        mixed: Tensor = self.drop(self.attention(h, outputs, padding))
        return mixed @ self.embedding.weight.T + self.output_bias

    def checkpoint(self) -> dict[str, Tensor]:
        """The state dict under OpenNMT-py's names."""
        own = self.state_dict()
        table, bias = own.pop("embedding.weight"), own.pop("output_bias")
        names = {
            "encoder.rnn_lst.": "encoder.rnn.rnn_lst.",
            "decoder.rnn_lst.": "decoder.rnn.rnn_lst.",
            "attention.": "decoder.attn.",
        }
        renamed = {
            new + name.removeprefix(old): tensor
            for name, tensor in own.items()
            for old, new in names.items()
            if name.startswith(old)
        }
        lookup = "embeddings.make_embedding.emb_luts.0.weight"
        tables = (f"encoder.{lookup}", f"decoder.{lookup}", "generator.0.weight")
        return renamed | dict.fromkeys(tables, table) | {"generator.0.bias": bias}

    def options(self) -> dict[str, Any]:
        """What an import has to know besides the weights."""
        return {"encoder_type": "rnn"}
