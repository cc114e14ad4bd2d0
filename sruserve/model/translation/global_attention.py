"""The attention of recurrent decoders, with the formulas of OpenNMT-py's `GlobalAttention`."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sruserve.kernels import LinearOp
from sruserve.kernels.decoder_attention import DecoderAttention, KeyRows, decoder_attention
from sruserve.model.cells.stack import Builder
from sruserve.model.translation.parts import linear


class GlobalAttention:
    """Attention of a decoder's outputs to all of the encoder's.

    kind: "dot", "general", "mlp" (additive) or "none". width: of the outputs of both sides.
    tensors: named as in OpenNMT-py.

    memory_width: numbers that it reads of each of the encoder's outputs.
    """

    def __init__(
        self, kind: str, width: int, tensors: Mapping[str, Tensor], builder: Builder
    ) -> None:
        self._context: LinearOp | None = None
        self._query: LinearOp | None = None
        self._mixed: LinearOp | None = None
        self._squashes = kind in ("dot", "general")
        self.memory_width = 0 if kind == "none" else width
        additive = None
        if kind == "general":
            self._query = linear(tensors, "linear_in", builder)
        elif kind == "mlp":
            self._query = linear(tensors, "linear_query", builder)
            self._context = linear(tensors, "linear_context", builder)
            self.memory_width = 2 * width
            additive = builder.exact(tensors["v.weight"][0])
        if kind != "none":
            self._mixed = linear(tensors, "linear_out", builder)
        values = self.memory_width - width
        self._attention = DecoderAttention(keys=0, values=values, width=width, additive=additive)

    def remembered(self, outputs: Tensor) -> Tensor:
        """Return what it reads of the encoder's outputs (rows, width): (rows, memory_width)."""
        if self._context is not None:
            return torch.cat((self._context(outputs), outputs), 1)
        return outputs[:, : self.memory_width].contiguous()

    def __call__(self, hidden: Tensor, rows: KeyRows, shares: Tensor | None) -> Tensor:
        """Return h̃ of a decoder's outputs (hypotheses, width), the same shape.

        rows: what `remembered` returned for each one's source. shares: receives the weights.
        """
        if self._mixed is None:
            return hidden
        query = hidden if self._query is None else self._query(hidden)
        context = decoder_attention(query, rows, self._attention, shares)
        mixed = self._mixed(torch.cat((context, hidden), 1))
        return mixed.tanh() if self._squashes else mixed
