"""The interface of every translation system: sources are encoded, hypotheses grow step by step."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sruserve.kernels import Layer
from sruserve.kernels.devices import CPU
from sruserve.model.exactness import exactness
from sruserve.model.gradients import without_gradients
from sruserve.model.translation.memory import Memory
from sruserve.model.translation.parts import check_sources, grouped, packed

MAX_ROWS = 1024  # ids that are encoded together, unless one source has more


class StepResult(NamedTuple):
    """What one step of many hypotheses gives.

    log_probs: (hypotheses, target vocabulary), float32: of the next token.
    state: (hypotheses, state_width), float32: the state after the step.
    cache: (hypotheses, cache_width), float32: the row that each hypothesis adds to what its later
        steps read.
    attention: (hypotheses, longest source), float32: the share of each source position in what the
        step read, the mean of all heads of the last layer, with 0 after the source's end; None
        unless it was requested.
    """

    log_probs: Tensor
    state: Tensor
    cache: Tensor
    attention: Tensor | None


class Translator(ABC):
    """A trained translation system. All tensors are on the CPU.

    On a CPU a source's memory and a hypothesis's step have the same bits whatever else is in the
    call, wherever its cache rows are, and whatever number of threads computes it.

    state_width: numbers of a hypothesis's recurrent state.
    cache_width: numbers that a hypothesis adds to the cache in a step; 0: it reads no earlier step.
    memory_width: numbers that attention reads of a source's position.
    source_size, target_size: numbers of ids.
    max_source, max_target: the most ids of a source, with those around its text, and the most
        steps of a hypothesis; None: any number.
    whole_because: why sources have to be whole, as a clause "it …"; None: they may arrive in
        chunks.
    encoder_width: numbers of the encoder's state between two chunks.
    weights: number of weights that a step multiplies a row by, a measure of its cost.
    layers: the recurrent layers of both sides.
    """

    state_width: int
    cache_width: int
    memory_width: int
    source_size: int
    target_size: int
    max_source: int | None
    max_target: int | None
    whole_because: str | None
    encoder_width: int
    weights: int
    layers: Sequence[Layer]

    @property
    def exactness(self) -> str:
        """How exactly results agree in other company."""
        return exactness(self.layers, torch.float32, CPU, False)

    @without_gradients
    def encode(self, sources: Sequence[Tensor], max_rows: int = MAX_ROWS) -> Memory:
        """Encode sources, a few at a time, so that the work memory is that of a few.

        sources: (length) each, int64 ids with those around the text; at least one id.
        max_rows: ids that are encoded together, unless one source has more.

        Raises ValueError for an empty source, one that is longer than `max_source`, or an id that
        is not in the vocabulary.
        """
        check_sources(sources, self.source_size, self.max_source)
        memories = [self._encode(*packed(group)) for group in grouped(sources, max_rows)]
        return Memory.join([Memory((), torch.zeros(0, self.state_width)), *memories])

    @abstractmethod
    def _encode(self, ids: Tensor, offsets: Tensor) -> Memory:
        """Encode sources that are packed end to end: ids (rows), offsets (sources + 1)."""

    @without_gradients
    def read(self, chunks: Sequence[Tensor], states: Tensor) -> Memory:
        """Encode the next chunks of sources, for systems without `whole_because`.

        chunks: (length) each, int64 ids; at least one. states: (sources, encoder_width), float32:
            the encoder's states before them; zeros at first.

        Returns the rows of these chunks, which are those of the whole sources, and the encoder's
        states after them. Raises ValueError as `encode`.
        """
        check_sources(chunks, self.source_size, self.max_source)
        memories, first = [Memory((), states[:0])], 0
        for group in grouped(chunks, MAX_ROWS):
            memories.append(self._read(*packed(group), states[first : first + len(group)].clone()))
            first += len(group)
        return Memory.join(memories)

    def _read(self, ids: Tensor, offsets: Tensor, states: Tensor) -> Memory:
        """Encode chunks that are packed end to end; `states` may be changed."""
        raise NotImplementedError

    def start(self, states: Tensor) -> Tensor:
        """Return the states in which hypotheses begin, (sources, state_width), float32.

        states: (sources, encoder_width), float32: of the encoder.
        """
        raise NotImplementedError

    @abstractmethod
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
        """Advance every hypothesis by one token.

        ids: (hypotheses), int64: each one's last token; `bos` at first.
        position: (hypotheses), int64: the number of its earlier steps; 0 at first.
        source: (hypotheses), int64: the number of its source in `memory`.
        state: (hypotheses, state_width), float32: `memory.states[source]` at first; not changed.
        cache: (slots, cache_width), float32, contiguous: rows of earlier steps, of any hypotheses.
        ancestry: (hypotheses, at least the largest position), int32: the cache rows of each one's
            earlier steps, the first step's first. What follows the first `position` of them is
            not read.
        attention: whether to return it.
        seen: (hypotheses), int64: the number of its source's first positions that each one reads;
            None: all.
        """
