"""Decode on a GPU: sequences fill the slots of captured bursts, and are sampled on the device."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sruserve.kernels.decode import Decoder
from sruserve.kernels.graphs import GraphedDecode
from sruserve.kernels.slots import WINDOW, DecodeInputs, Slots
from sruserve.server.engine.job import Sampling
from sruserve.server.engine.sequence import ActiveSequence


class GraphDecoder:
    """Runs one model's bursts.

    max_sequences, max_steps: of one burst; more sequences are decoded in several bursts.
    """

    def __init__(
        self, decoder: Decoder, device: torch.device, max_sequences: int, max_steps: int
    ) -> None:
        self._decoder, self._device = decoder, device
        self._bursts = GraphedDecode(decoder.step, device, max_sequences, max_steps)
        self.max_steps = self._bursts.max_steps
        self._sampling: list[Sampling] = []
        self._columns = _parameters([])

    def run(
        self,
        sequences: Sequence[ActiveSequence],
        source: Sequence[int],
        target: Sequence[int],
        uniforms: NDArray[np.float64],
    ) -> list[list[int]]:
        """Decode one token of every sequence for each row of `uniforms`, (steps, sequences).

        Returns the tokens, by sequence.

        source, target: the pool rows to read states from and write them to; -1 reads zeros.
        """
        tokens = [sequence.pending for sequence in sequences]
        inputs = self._describe(sequences, tokens, source, target, uniforms)
        picked: list[list[int]] = self._bursts.run(inputs, len(uniforms)).T.tolist()
        return picked

    def pick(
        self,
        sequences: Sequence[ActiveSequence],
        uniforms: NDArray[np.float64],
        logits: Tensor,
        step: int,
    ) -> Tensor:
        """Pick a token for each sequence, (sequences) int64 on the device, from scores there.

        uniforms: (steps, sequences), for all steps of the burst. step: the current one.

        Bursts use the same kernel, so a token does not depend on which of the two picks it.
        """
        no_rows = [-1] * len(sequences)
        slots = Slots(len(sequences), 1, self._device)
        slots.load(self._describe(sequences, no_rows, no_rows, no_rows, uniforms[step:][:1]))
        self._decoder.pick(logits, slots)
        return slots.tokens

    def _describe(
        self,
        sequences: Sequence[ActiveSequence],
        tokens: Sequence[int],
        source: Sequence[int],
        target: Sequence[int],
        uniforms: NDArray[np.float64],
    ) -> DecodeInputs:
        sampling = [sequence.job.sampling for sequence in sequences]
        # Usually those of the last burst. By identity: comparing what clients sent takes long.
        if [id(each) for each in self._sampling] != [id(each) for each in sampling]:
            self._columns = _parameters(sampling)
            # A reference to a constraint would keep the process of its grammar.
            self._sampling = [] if any(each.constraint for each in sampling) else sampling
        window = torch.full((len(sequences), WINDOW), -1)
        for i, sequence in enumerate(sequences):
            if sequence.job.sampling.repetition_penalty != 1 and sequence.window:
                window[i, WINDOW - len(sequence.window) :] = torch.tensor(sequence.window)
        return DecodeInputs(
            tokens=torch.tensor(tokens),
            source=torch.tensor(source),
            target=torch.tensor(target),
            uniforms=torch.from_numpy(uniforms),
            window=window,
            **self._columns,
        )


def _parameters(sampling: Sequence[Sampling]) -> dict[str, Tensor]:
    """The sequences' sampling parameters, as fields of `DecodeInputs`."""
    return {
        "temperature": torch.tensor([s.temperature for s in sampling], dtype=torch.float32),
        "top_p": torch.tensor([s.top_p for s in sampling], dtype=torch.float32),
        "min_p": torch.tensor([s.min_p for s in sampling], dtype=torch.float32),
        "penalty": torch.tensor([s.repetition_penalty for s in sampling], dtype=torch.float32),
        "top_k": torch.tensor([min(s.top_k, (1 << 31) - 1) for s in sampling], dtype=torch.int32),
    }
