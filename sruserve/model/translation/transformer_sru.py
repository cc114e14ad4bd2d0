"""Transformer + SRU (Lei et al. 2018, 4.3), with the formulas of `flambe.nn.TransformerSRU`."""

from collections.abc import Mapping

import torch
from torch import Tensor

from sruserve.kernels.decoder_attention import KeyRows
from sruserve.kernels.layer import one_step_each
from sruserve.model.cells.stack import Builder
from sruserve.model.gradients import without_gradients
from sruserve.model.translation.memory import Memory
from sruserve.model.translation.parts import (
    Output,
    below,
    from_zeros,
    split,
)
from sruserve.model.translation.transformer_config import TransformerSRUConfig
from sruserve.model.translation.transformer_layers import (
    DecoderLayer,
    EncoderLayer,
    Inputs,
    norm_of,
)
from sruserve.model.translation.translator import StepResult, Translator


class TransformerSRU(Translator):
    """An encoder and a decoder of attention and SRU layers.

    A source's memory is the keys and values that each of the decoder's layers reads of it; the
    cache has those of a hypothesis's own steps.
    """

    def __init__(
        self,
        config: TransformerSRUConfig,
        tensors: Mapping[str, Tensor],
        source_size: int,
        target_size: int,
        builder: Builder,
    ) -> None:
        self.config = config
        self.source_size, self.target_size = source_size, target_size
        self.max_source, self.max_target = config.max_source, config.max_target
        self.whole_because = "each step of its encoder attends to the whole source"
        self.encoder_width = 0
        pair = 2 * config.d_model
        self._encoder_layout, layout = config.layouts()
        self.state_width = layout.width
        self.cache_width = self.memory_width = pair * config.num_decoder_layers
        source = "target" if config.shared_embeddings else "source"
        self._source = Inputs(config, tensors, "encoder", source, config.max_source, builder)
        self._target = Inputs(config, tensors, "decoder", "target", config.max_target, builder)
        self._encoder = [
            EncoderLayer(
                config, below(tensors, f"encoder.layers.{i}."), self._encoder_layout, i, builder
            )
            for i in range(config.num_encoder_layers)
        ]
        self._decoder = [
            DecoderLayer(config, below(tensors, f"decoder.layers.{i}."), layout, i, builder)
            for i in range(config.num_decoder_layers)
        ]
        self.layers = [layer.sru for layer in (*self._encoder, *self._decoder)]
        ends = [
            norm_of(tensors, f"{side}.norm", builder) if config.norm_first else None
            for side in ("encoder", "decoder")
        ]
        self._encoder_norm, self._decoder_norm = ends
        self._output = Output(tensors, config.tied_output, builder)
        self.weights = self._output.linear.inputs * self._output.linear.outputs + sum(
            tensor.numel()
            for name, tensor in tensors.items()
            if name.startswith("decoder.") and tensor.dim() == 2
        )

    def _encode(self, ids: Tensor, offsets: Tensor) -> Memory:
        batch = from_zeros(offsets, self._encoder_layout.width)
        starts = offsets[:-1].repeat_interleave(offsets.diff())
        x = self._source(ids, torch.arange(len(ids)) - starts)
        for layer in self._encoder:
            x = layer(x, batch)
        if self._encoder_norm is not None:
            x = self._encoder_norm(x)
        rows = torch.cat([layer.remembered(x) for layer in self._decoder], 1)
        if self.config.encoder_starts_decoder:
            states = batch.states
        else:
            states = torch.zeros(len(offsets) - 1, self.state_width)
        return Memory(split(rows, offsets), states)

    @without_gradients
    def step(
        self,
        ids: Tensor,
        position: Tensor,
        source: Tensor,
        memory: Memory,
        state: Tensor,
        cache: Tensor,
        ancestry: Tensor,
        *,
        attention: bool = False,
        seen: Tensor | None = None,
    ) -> StepResult:
        """See `Translator.step`."""
        here = torch.arange(len(ids))
        states = state.clone()
        batch = one_step_each(states, here, here)
        own = torch.empty(len(ids), self.cache_width)
        earlier = KeyRows((cache,), torch.zeros_like(source), position, ancestry.contiguous(), own)
        counts = memory.lengths[source] if seen is None else seen
        sources = KeyRows(memory.rows, source, counts)
        shares = torch.empty(len(ids), memory.longest) if attention else None
        x = self._target(ids, position)
        for layer in self._decoder:
            last = layer is self._decoder[-1]
            x = layer(x, batch, earlier, sources, shares if last else None)
        if self._decoder_norm is not None:
            x = self._decoder_norm(x)
        return StepResult(self._output(x), states, own, shares)
