"""The layers of a Transformer whose feed-forward parts are SRUs."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sruserve.kernels import Attention, Layer, Norm, RaggedBatch
from sruserve.kernels.attention import attend
from sruserve.kernels.decoder_attention import DecoderAttention, KeyRows, decoder_attention
from sruserve.model.cells.sru import SRUConfig
from sruserve.model.cells.stack import Builder
from sruserve.model.state import StateLayout
from sruserve.model.translation.parts import below, linear, sinusoids
from sruserve.model.translation.transformer_config import TransformerSRUConfig


class Inputs:
    """Ids and their positions to the rows that the first layer reads."""

    def __init__(
        self,
        config: TransformerSRUConfig,
        tensors: Mapping[str, Tensor],
        side: str,
        embedding: str,
        longest: int,
        builder: Builder,
    ) -> None:
        table = tensors[f"{embedding}_embedding.weight"].float() * config.embedding_scale
        self._table = builder.put(table)
        self._positions: Tensor | None = None
        if config.positions == "learned":
            name = "source" if side == "encoder" else "target"
            self._positions = builder.put(tensors[f"{name}_positions.weight"])
        elif config.positions == "sinusoidal":
            self._positions = sinusoids(longest, config.width)
        self._projection = None
        if config.width != config.d_model:
            self._projection = linear(tensors, f"{side}.proj", builder)

    def __call__(self, ids: Tensor, position: Tensor) -> Tensor:
        """Map ids and their positions, (rows) each, to (rows, d_model)."""
        x = self._table.index_select(0, ids)
        if self._positions is not None:
            x = x + self._positions.index_select(0, position)
        return x if self._projection is None else self._projection(x)


class _Layer:
    """The parts of every layer: its SRU, and the norms around its sublayers.

    sublayers: how many there are, each with a norm.
    """

    def __init__(
        self,
        config: TransformerSRUConfig,
        tensors: Mapping[str, Tensor],
        sru: SRUConfig,
        place: tuple[StateLayout, int],
        sublayers: int,
        builder: Builder,
    ) -> None:
        self.d, self.heads, self._norm_first = config.d_model, config.nhead, config.norm_first
        layout, number = place
        own = {f"rnn_lst.0.{name}": tensor for name, tensor in below(tensors, "sru.").items()}
        earlier = layout.column(f"{number}.c")
        (self.sru,) = sru.stack(
            own, StateLayout([("earlier layers", (earlier,)), *sru.states()]), builder
        ).layers
        self._linear = linear(tensors, "linear2", builder)
        self._norms = [norm_of(tensors, f"norm{i + 1}", builder) for i in range(sublayers)]

    def before(self, x: Tensor, sublayer: int) -> Tensor:
        """Return what a sublayer reads."""
        return self._norms[sublayer](x) if self._norm_first else x

    def after(self, x: Tensor, change: Tensor, sublayer: int) -> Tensor:
        """Add what a sublayer made of x."""
        x = x + change
        return x if self._norm_first else self._norms[sublayer](x)

    def feed_forward(self, x: Tensor, batch: RaggedBatch, sublayer: int) -> Tensor:
        """Run the SRU and its linear layer."""
        layer: Layer = self.sru
        return self.after(x, self._linear(layer(self.before(x, sublayer), batch)), sublayer)


class EncoderLayer(_Layer):
    """Attention to the whole source, then the SRU."""

    def __init__(
        self,
        config: TransformerSRUConfig,
        tensors: Mapping[str, Tensor],
        layout: StateLayout,
        number: int,
        builder: Builder,
    ) -> None:
        super().__init__(config, tensors, config.encoder_sru, (layout, number), 2, builder)
        weight, bias = _projections(tensors, "self_attn")
        d = self.d
        self._query = builder.linear(weight[:d], bias[:d])
        self._keys_values = builder.linear(weight[d:], bias[d:])
        self._mixed = linear(tensors, "self_attn.out_proj", builder)
        self._attention = Attention(window=None, heads=self.heads)

    def __call__(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        """Run whole sources, (rows, d_model)."""
        read = self.before(x, 0)
        q, keys_values = self._query(read), self._keys_values(read)
        mixed = attend(q, keys_values, torch.zeros_like(q), batch, self._attention)
        x = self.after(x, self._mixed(mixed), 0)
        return self.feed_forward(x, batch, 1)


class DecoderLayer(_Layer):
    """Attention to the steps so far, attention to the source, then the SRU."""

    def __init__(
        self,
        config: TransformerSRUConfig,
        tensors: Mapping[str, Tensor],
        layout: StateLayout,
        number: int,
        builder: Builder,
    ) -> None:
        super().__init__(config, tensors, config.sru, (layout, number), 3, builder)
        d, column = self.d, 2 * self.d * number
        self._columns = slice(column, column + 2 * d)
        self._attention = DecoderAttention(
            keys=column,
            values=column + d,
            width=d,
            heads=self.heads,
            scale=(d / self.heads) ** -0.5,
        )
        weight, bias = _projections(tensors, "self_attn")
        self._all = builder.linear(weight, bias)
        self._mixed = linear(tensors, "self_attn.out_proj", builder)
        weight, bias = _projections(tensors, "multihead_attn")
        self._query = builder.linear(weight[:d], bias[:d])
        self._keys_values = builder.linear(weight[d:], bias[d:])
        self._mixed_source = linear(tensors, "multihead_attn.out_proj", builder)

    def remembered(self, x: Tensor) -> Tensor:
        """Return the keys and values of the encoder's outputs, (rows, 2 d)."""
        return self._keys_values(x)

    def __call__(
        self,
        x: Tensor,
        batch: RaggedBatch,
        earlier: KeyRows,
        sources: KeyRows,
        shares: Tensor | None,
    ) -> Tensor:
        """Run one step of each row; its keys and values are written to `earlier.own`.

        earlier: the steps before it. sources: the memory. shares: receives the weights of the
            attention to the source.
        """
        all_three = self._all(self.before(x, 0))
        assert earlier.own is not None
        earlier.own[:, self._columns] = all_three[:, self.d :]
        mixed = decoder_attention(all_three[:, : self.d].contiguous(), earlier, self._attention)
        x = self.after(x, self._mixed(mixed), 0)
        q = self._query(self.before(x, 1))
        mixed = decoder_attention(q, sources, self._attention, shares)
        x = self.after(x, self._mixed_source(mixed), 1)
        return self.feed_forward(x, batch, 2)


def norm_of(tensors: Mapping[str, Tensor], name: str, builder: Builder) -> Norm:
    """Make the layer norm of that name."""
    return Norm(builder.put(tensors[f"{name}.weight"]), builder.put(tensors[f"{name}.bias"]))


def _projections(tensors: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    """Return weight and bias of query, key and value, one after another."""
    return tensors[f"{name}.in_proj_weight"], tensors[f"{name}.in_proj_bias"]
