"""Sample the next token of many sequences at once. No row's result depends on other rows."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sruserve.kernels.devices import CPU
from sruserve.kernels.slots import WINDOW
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.sampling.filters import Filters, column

_MIN_TEMPERATURE = 1e-30  # float32 can still divide by it


class Sampler:
    """The sampling parameters of a batch of sequences, as tensors, for one burst of steps.

    windows: each sequence's last tokens, at most `WINDOW`.
    uniforms: (steps, sequences), float64: the random numbers of every step of the burst.
    device: the device of the scores.
    """

    def __init__(
        self,
        sampling: Sequence[Sampling],
        windows: Sequence[Sequence[int]],
        uniforms: NDArray[np.float64],
        device: torch.device = CPU,
    ) -> None:
        own = partial(column, device)
        temperature = [s.temperature for s in sampling]
        self._uniforms = torch.from_numpy(uniforms).to(device).unsqueeze(2)
        self._greedy = own([t == 0.0 for t in temperature]) if 0.0 in temperature else None
        self._all_greedy = not any(temperature)
        self._temperature = own([max(t, _MIN_TEMPERATURE) if t else 1.0 for t in temperature])
        self._tempered = any(t not in (0.0, 1.0) for t in temperature)
        self._filters: Filters | None = None
        filtered = [i for i, s in enumerate(sampling) if s.top_k or s.top_p < 1 or s.min_p]
        if filtered:
            self._filters = Filters(sampling, filtered, device)
        self._step, self._picked = 0, torch.zeros(0)  # the last step and its tokens
        self._window: Tensor | None = None
        if any(s.repetition_penalty != 1 for s in sampling):
            self._penalty = own([s.repetition_penalty for s in sampling])
            padded = [[-1] * (WINDOW - len(w)) + list(w) for w in windows]
            self._window = torch.tensor(padded, device=device)

    def __call__(self, logits: Tensor, step: int) -> Tensor:
        """Sample (sequences) int64 tokens from logits (sequences, vocabulary), float32.

        A token is the inverse CDF, in id order, at the step's uniform number. The distribution
        results from penalty, temperature, top-k, top-p and min-p, in this order. Temperature 0
        picks the most likely token. A second call for the same step replaces the first one's
        tokens.
        """
        if self._window is not None:
            if step > self._step:
                self._window = torch.cat((self._window[:, 1:], self._picked.unsqueeze(1)), 1)
            logits = self._penalised(logits, self._window)
        if self._all_greedy:
            tokens = logits.argmax(1)
        else:
            if self._tempered:  # the maximum becomes 0; a low temperature would make it infinite
                tempered = (logits - logits.amax(1, keepdim=True)) / self._temperature
            else:
                tempered = logits
            probabilities = tempered.softmax(1)
            if self._filters is not None:
                probabilities = self._filters(probabilities)
            cdf = probabilities.cumsum(1, dtype=torch.float64)
            threshold = self._uniforms[step] * cdf[:, -1:]
            tokens = (cdf <= threshold).sum(1).clamp_(max=logits.shape[1] - 1)
            if self._greedy is not None:
                tokens = torch.where(self._greedy.squeeze(1), logits.argmax(1), tokens)
        self._picked, self._step = tokens, step
        return tokens

    def _penalised(self, logits: Tensor, window: Tensor) -> Tensor:
        """Make the tokens of the window less likely (Keskar et al. 2019, section 4.1)."""
        vocabulary = logits.shape[1]
        seen = logits.new_zeros(len(logits), vocabulary + 1, dtype=torch.bool)
        seen.scatter_(1, window.where(window >= 0, vocabulary), True)
        penalised = torch.where(logits > 0, logits / self._penalty, logits * self._penalty)
        return torch.where(seen[:, :vocabulary], penalised, logits)
