"""Decoding on a GPU: the engine's streams as slots of captured bursts, sampled where they are."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sruserve.kernels.decode import Decoder
from sruserve.kernels.graphs import Bursts
from sruserve.kernels.slots import WINDOW, Slots, Streams
from sruserve.server.engine.jobs import Sampling
from sruserve.server.engine.streams import Stream


class Decoding:
    """One model's bursts.

    most_streams, most_steps: of one burst; more streams go in turns.
    """

    def __init__(
        self, decoder: Decoder, device: torch.device, most_streams: int, most_steps: int
    ) -> None:
        self._decoder, self._device = decoder, device
        self._bursts = Bursts(decoder.step, device, most_streams, most_steps)
        self.most_steps = self._bursts.most_steps
        self._sampling: list[Sampling] = []
        self._columns = _parameters([])

    def run(
        self,
        streams: Sequence[Stream],
        source: Sequence[int],
        target: Sequence[int],
        uniforms: NDArray[np.float64],
    ) -> list[list[int]]:
        """Decode as many tokens of every stream as `uniforms`, (steps, streams), has rows.

        source, target: the rows that states are read from and written to; -1 starts from zeros.
        """
        tokens = [stream.pending for stream in streams]
        given = self._describe(streams, tokens, source, target, uniforms)
        picked: list[list[int]] = self._bursts.run(given, len(uniforms)).T.tolist()
        return picked

    def pick(
        self, streams: Sequence[Stream], uniforms: NDArray[np.float64], logits: Tensor, step: int
    ) -> Tensor:
        """One token for each stream, (streams) int64 on the device, from scores that are there.

        uniforms: (steps, streams): those of all steps, of which this is number `step`.

        The same kernel as in a burst: a token does not depend on which of the two picks it.
        """
        nowhere = [-1] * len(streams)
        slots = Slots(len(streams), 1, self._device)
        slots.load(self._describe(streams, nowhere, nowhere, nowhere, uniforms[step:][:1]))
        self._decoder.pick(logits, slots)
        return slots.tokens

    def _describe(
        self,
        streams: Sequence[Stream],
        tokens: Sequence[int],
        source: Sequence[int],
        target: Sequence[int],
        uniforms: NDArray[np.float64],
    ) -> Streams:
        sampling = [stream.job.sampling for stream in streams]
        # Mostly those of the last burst. By identity: to compare what clients sent takes long.
        if [id(each) for each in self._sampling] != [id(each) for each in sampling]:
            self._sampling, self._columns = sampling, _parameters(sampling)
        window = torch.full((len(streams), WINDOW), -1)
        for i, stream in enumerate(streams):
            if stream.job.sampling.repetition_penalty != 1 and stream.window:
                window[i, WINDOW - len(stream.window) :] = torch.tensor(stream.window)
        return Streams(
            tokens=torch.tensor(tokens),
            source=torch.tensor(source),
            target=torch.tensor(target),
            uniforms=torch.from_numpy(uniforms),
            window=window,
            **self._columns,
        )


def _parameters(sampling: Sequence[Sampling]) -> dict[str, Tensor]:
    """The sampling parameters of some streams, as the fields of `Streams`."""
    return {
        "temperature": torch.tensor([s.temperature for s in sampling], dtype=torch.float32),
        "top_p": torch.tensor([s.top_p for s in sampling], dtype=torch.float32),
        "min_p": torch.tensor([s.min_p for s in sampling], dtype=torch.float32),
        "penalty": torch.tensor([s.repetition_penalty for s in sampling], dtype=torch.float32),
        "top_k": torch.tensor([min(s.top_k, (1 << 31) - 1) for s in sampling], dtype=torch.int32),
    }
