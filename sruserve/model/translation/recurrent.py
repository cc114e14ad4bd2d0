"""A recurrent encoder and decoder with attention (Bahdanau et al. 2015; Luong et al. 2015)."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sruserve.kernels import Layer, RaggedBatch
from sruserve.kernels.decoder_attention import KeyRows
from sruserve.kernels.layer import one_step_each
from sruserve.model.cells.stack import Builder, StackConfig
from sruserve.model.gradients import without_gradients
from sruserve.model.state import StateLayout
from sruserve.model.translation.global_attention import GlobalAttention
from sruserve.model.translation.memory import Memory
from sruserve.model.translation.parts import Output, below, from_zeros, split
from sruserve.model.translation.recurrent_config import RecurrentConfig
from sruserve.model.translation.translator import StepResult, Translator


class RecurrentTranslator(Translator):
    """A stack that reads the source, and one that writes the target.

    A source's memory is what attention reads of the encoder's outputs. A hypothesis's state is that
    of the decoder's layers, and with input feeding its last output.
    """

    cache_width = 0

    def __init__(
        self,
        config: RecurrentConfig,
        tensors: Mapping[str, Tensor],
        source_size: int,
        target_size: int,
        builder: Builder,
    ) -> None:
        self.config = config
        self.source_size, self.target_size = source_size, target_size
        self.max_source, self.max_target = config.max_source, config.max_target
        self._layout = config.state_layout
        self.state_width = self._layout.width
        self._encoder_layout = StateLayout(config.encoder.states())
        self.encoder_width = self._encoder_layout.width
        self.whole_because = config.whole_because
        self._encoder = _Stack(config.encoder, tensors, "encoder.", self._encoder_layout, builder)
        self._decoder = _Stack(config.decoder, tensors, "decoder.", self._layout, builder)
        self._attention = GlobalAttention(
            config.attention, config.hidden_width, below(tensors, "attention."), builder
        )
        self.layers = [*self._encoder.layers, *self._decoder.layers]
        self.memory_width = self._attention.memory_width
        source = "target" if config.shared_embeddings else "source"
        self._source = builder.put(tensors[f"{source}_embedding.weight"])
        self._target = builder.put(tensors["target_embedding.weight"])
        self._output = Output(tensors, config.tied_output, builder)
        self.weights = self._output.linear.inputs * self._output.linear.outputs + sum(
            tensor.numel()
            for name, tensor in tensors.items()
            if name.startswith(("decoder.", "attention.")) and tensor.dim() == 2
        )

    def _encode(self, ids: Tensor, offsets: Tensor) -> Memory:
        batch = from_zeros(offsets, self._encoder_layout.width)
        rows = self._rows(ids, batch)
        return Memory(rows, self.start(batch.states))

    def _read(self, ids: Tensor, offsets: Tensor, states: Tensor) -> Memory:
        here = torch.arange(len(states))
        rows = self._rows(ids, RaggedBatch(offsets, states, here, here))
        return Memory(rows, states)

    def _rows(self, ids: Tensor, batch: RaggedBatch) -> tuple[Tensor, ...]:
        """Run the encoder; returns what attention reads of each sequence."""
        outputs = self._encoder(self._source.index_select(0, ids), batch)
        return split(self._attention.remembered(outputs), batch.offsets)

    def start(self, states: Tensor) -> Tensor:
        """See `Translator.start`."""
        first = torch.zeros(len(states), self.state_width)
        if self.config.encoder_starts_decoder:
            first[:, : self.encoder_width] = states
        return first

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
        """See `Translator.step`; it reads no cache."""
        del position, cache, ancestry
        here = torch.arange(len(ids))
        states = state.clone()
        x, fed = self._target.index_select(0, ids), None
        if self.config.input_feed:
            fed = states[:, self._layout.column("input_feed") :]
            x = torch.cat((x, fed), 1)
        hidden = self._decoder(x, one_step_each(states, here, here))
        counts = memory.lengths[source] if seen is None else seen
        rows = KeyRows(memory.rows, source, counts)
        shares = torch.zeros(len(ids), memory.longest) if attention else None
        output = self._attention(hidden, rows, shares)
        if fed is not None:
            fed.copy_(output)
        return StepResult(self._output(output), states, torch.empty(len(ids), 0), shares)


class _Stack:
    """The layers of one side."""

    def __init__(
        self,
        config: StackConfig,
        tensors: Mapping[str, Tensor],
        prefix: str,
        layout: StateLayout,
        builder: Builder,
    ) -> None:
        stack = config.stack(below(tensors, prefix), layout, builder)
        self._projection, self._concat = stack.input_projection, stack.concat
        self.layers: Sequence[Layer] = stack.layers

    def __call__(self, x: Tensor, batch: RaggedBatch) -> Tensor:
        if self._projection is not None:
            x = self._projection(x)
        outputs = []
        for layer in self.layers:
            x = layer(x, batch)
            outputs.append(x)
        return torch.cat(outputs, 1) if self._concat else x
