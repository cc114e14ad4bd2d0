"""Scores changed before a token is picked: biases, bans, penalties, a constraint's choice."""

from collections.abc import Callable, Sequence
from time import monotonic

import numpy as np
import torch
from torch import Tensor

from sruserve.kernels.devices import send
from sruserve.kernels.slots import WINDOW
from sruserve.server.engine.constrained import TextPosition
from sruserve.server.engine.jobs import Added, Job, Row, Sampling
from sruserve.server.engine.pool import indices
from sruserve.server.engine.streams import Stream

_MOST_SECONDS = 0.01  # of a step that waits for grammars

# Picks tokens, (streams) int64, from scores (streams, vocabulary), float32, at a step of a burst.
Pick = Callable[[Tensor, int], Tensor]


class Patience:
    """How long steps wait for grammars: for those of others at most a third of the time."""

    def __init__(self) -> None:
        self._since = self._left = 0.0

    def until(self, now: float, alone: bool) -> float:
        """When to wait no longer. alone: a job that has the step to itself may wait longer."""
        self._left = min(_MOST_SECONDS, self._left + (now - self._since) / 2)
        return now + (_MOST_SECONDS if alone else max(0.0, self._left))

    def waited(self, begun: float, now: float) -> None:
        """Count a wait."""
        self._left = max(-_MOST_SECONDS, self._left - (now - begun))
        self._since = now


class Adjusted:
    """A picker that first changes the scores of those streams that ask for it.

    The others' scores are what they were, and no row depends on another one.

    late: a text's position is not known yet; its token counts when that is, in a later step.
    """

    def __init__(
        self, pick: Pick, streams: Sequence[Stream], vocabulary: int, patience: Patience
    ) -> None:
        self._pick, self._patience = pick, patience
        self._alone = len({stream.job for stream in streams}) == 1
        self.late = False
        rows = [row for row, stream in enumerate(streams) if stream.job.sampling.adjusts]
        chosen = [streams[row] for row in rows]
        self._rows = rows
        self._fixed = torch.from_numpy(np.stack([_fixed(s.job, vocabulary) for s in chosen]))
        self._penalties = _Penalties(chosen) if any(map(_penalised, chosen)) else None
        self._spellings: dict[int, TextPosition] = {}
        for row, stream in zip(rows, chosen, strict=True):
            if stream.spelling is not None:
                stream.spelling.settle(0)  # what a step that failed has taken
                self._spellings[row] = stream.spelling

    def __call__(self, logits: Tensor, step: int) -> Tensor:
        """The tokens of a step; `logits` stay as they are."""
        rows = indices(self._rows, logits.device)
        changed = logits.index_select(0, rows) + send(self._fixed, logits.device)
        if self._penalties is not None:
            changed -= self._penalties.of(logits.shape[1], logits.device)
        adjusted = logits.index_copy(0, rows, changed)
        spelling = {row: one for row, one in self._spellings.items() if not one.ended}
        begun = monotonic()
        until = self._patience.until(begun, self._alone)
        while True:
            for row, one in spelling.items():
                _allow(adjusted, row, one)
            tokens = self._pick(adjusted, step)
            if spelling:
                picked = tokens.tolist()
                for row, one in spelling.items():
                    token = one.expect(picked[row])
                    if token != picked[row]:  # it was asked before
                        tokens[row] = picked[row] = token
                ready = {row: one for row, one in spelling.items() if one.ready(until)}
                self.late = self.late or len(ready) < len(spelling)
                spelling = {row: one for row, one in ready.items() if not one.take(picked[row])}
            if not spelling:  # or again for whoever was about to step into a dead end
                break
        if self._spellings:
            self._patience.waited(begun, monotonic())
        if self._penalties is not None:
            self._penalties.add(tokens[self._rows].cpu())
        return tokens


class _Penalties:
    """OpenAI's penalties: so much for each time that a token was said, and once for all of them."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        sampling = [stream.job.sampling for stream in streams]
        self._each = torch.tensor([s.frequency_penalty for s in sampling]).unsqueeze(1)
        self._once = torch.tensor([s.presence_penalty for s in sampling]).unsqueeze(1)
        windows = [stream.window for stream in streams]
        self._window = torch.tensor([[-1] * (WINDOW - len(w)) + list(w) for w in windows])

    def of(self, vocabulary: int, device: torch.device) -> Tensor:
        """What is taken off every score, (streams, vocabulary), float32."""
        said = torch.zeros(len(self._window), vocabulary + 1)
        places = self._window.where(self._window >= 0, vocabulary)
        said.scatter_add_(1, places, torch.ones(places.shape))
        said = said[:, :vocabulary]
        return send(self._each * said + self._once * (said > 0), device)

    def add(self, tokens: Tensor) -> None:
        """Go on behind the (streams) tokens that were picked."""
        self._window = torch.cat((self._window[:, 1:], tokens.unsqueeze(1)), 1)


def _penalised(stream: Stream) -> bool:
    return stream.job.sampling.penalises


def _fixed(job: Job, vocabulary: int) -> Row:
    """What is added to every score of a job's streams in all steps, (vocabulary)."""
    if job.added is None:
        job.added = _added(job.sampling)
    ids, values = job.added
    fixed = np.full(vocabulary, -np.inf if job.sampling.allowed else 0, np.float32)
    fixed[ids] = values
    return fixed


def _added(sampling: Sampling) -> Added:
    """What is added to the scores of some ids."""
    added = dict.fromkeys(sampling.allowed, 0.0)
    for token, bias in sampling.logit_bias:
        if not sampling.allowed or token in added:
            added[token] = bias
    return np.fromiter(added, np.int64, len(added)), np.array([*added.values()], np.float32)


def _allow(logits: Tensor, row: int, spelling: TextPosition) -> None:
    """Leave the scores of those tokens only that may come next."""
    ids = indices(spelling.ids.tolist(), logits.device)
    kept = logits[row, ids]
    logits[row] = -torch.inf
    logits[row, ids] = kept
