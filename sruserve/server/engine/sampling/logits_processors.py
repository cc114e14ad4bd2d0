"""Changes to scores before a token is sampled: biases, bans, penalties and constraints."""

from collections.abc import Callable, Sequence
from time import monotonic

import numpy as np
import torch
from torch import Tensor

from sruserve.kernels.devices import copy_to_device
from sruserve.kernels.slots import WINDOW
from sruserve.server.engine.constrained.protocols import TextPosition
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.job import Added, Job
from sruserve.server.engine.sequence import ActiveSequence
from sruserve.server.engine.snapshot import Row
from sruserve.server.engine.state_cache.pool import indices

_MAX_WAIT_SECONDS = 0.01  # for which one step waits for grammars

# Picks tokens, (sequences) int64, from scores (sequences, vocabulary) float32, at a burst's step.
Pick = Callable[[Tensor, int], Tensor]


class GrammarWaitBudget:
    """Limits the time that steps wait for grammars.

    Steps that several jobs share spend at most a third of the time waiting.
    """

    def __init__(self) -> None:
        self._since = self._left = 0.0

    def until(self, now: float, alone: bool) -> float:
        """Return the time at which to stop waiting.

        alone: one job has the step to itself, so the step may wait longer.
        """
        self._left = min(_MAX_WAIT_SECONDS, self._left + (now - self._since) / 2)
        return now + (_MAX_WAIT_SECONDS if alone else max(0.0, self._left))

    def waited(self, started: float, now: float) -> None:
        """Record a wait."""
        self._left = max(-_MAX_WAIT_SECONDS, self._left - (now - started))
        self._since = now


class LogitsProcessor:
    """Changes the scores of those sequences whose sampling asks for it, then picks tokens.

    The scores of the others stay the same, and no row depends on another one.

    alone: one job has the step to itself.
    late: some text's position is not known yet. Its token counts once it is, in a later step.
    """

    def __init__(
        self,
        pick: Pick,
        sequences: Sequence[ActiveSequence],
        vocabulary: int,
        wait_budget: GrammarWaitBudget,
        alone: bool,
    ) -> None:
        self._pick, self._wait_budget, self._alone = pick, wait_budget, alone
        self.late = False
        rows = [row for row, sequence in enumerate(sequences) if sequence.job.sampling.adjusts]
        chosen = [sequences[row] for row in rows]
        self._rows = rows
        jobs = dict.fromkeys(sequence.job for sequence in chosen)
        biases = {job: _static_bias(job, vocabulary) for job in jobs}
        self._bias = torch.from_numpy(np.stack([biases[sequence.job] for sequence in chosen]))
        self._penalties = _Penalties(chosen) if any(map(_penalised, chosen)) else None
        self._constraint_states: dict[int, TextPosition] = {}
        for row, sequence in zip(rows, chosen, strict=True):
            if sequence.constraint_state is not None:
                sequence.constraint_state.commit(0)  # discard the tokens of a failed step
                self._constraint_states[row] = sequence.constraint_state

    def __call__(self, logits: Tensor, step: int) -> Tensor:
        """Return the tokens of a step; `logits` stay unchanged."""
        rows = indices(self._rows, logits.device)
        changed = logits.index_select(0, rows) + copy_to_device(self._bias, logits.device)
        if self._penalties is not None:
            changed -= self._penalties.of(logits.shape[1], logits.device)
        adjusted = logits.index_copy(0, rows, changed)
        unresolved = {
            row: state for row, state in self._constraint_states.items() if not state.ended
        }
        started = monotonic()
        until = self._wait_budget.until(started, self._alone)
        while True:
            for row, state in unresolved.items():
                _mask_disallowed(adjusted, row, state)
            tokens = self._pick(adjusted, step)
            if unresolved:
                picked = tokens.tolist()
                for row, state in unresolved.items():
                    token = state.expect(picked[row])
                    if token != picked[row]:  # the constraint still works on an earlier token
                        tokens[row] = picked[row] = token
                ready = {row: state for row, state in unresolved.items() if state.ready(until)}
                self.late = self.late or len(ready) < len(unresolved)
                unresolved = {
                    row: state for row, state in ready.items() if not state.advance(picked[row])
                }
            if not unresolved:  # else the token of some text is a dead end: pick again
                break
        if self._constraint_states:
            self._wait_budget.waited(started, monotonic())
        if self._penalties is not None:
            self._penalties.add(tokens[self._rows].cpu())
        return tokens


class _Penalties:
    """OpenAI's penalties: one per occurrence of a token, and one for tokens that occur at all."""

    def __init__(self, sequences: Sequence[ActiveSequence]) -> None:
        sampling = [sequence.job.sampling for sequence in sequences]
        self._frequency = torch.tensor([s.frequency_penalty for s in sampling]).unsqueeze(1)
        self._presence = torch.tensor([s.presence_penalty for s in sampling]).unsqueeze(1)
        windows = [sequence.window for sequence in sequences]
        self._window = torch.tensor([[-1] * (WINDOW - len(w)) + list(w) for w in windows])

    def of(self, vocabulary: int, device: torch.device) -> Tensor:
        """Return the amounts to subtract from the scores, (sequences, vocabulary), float32."""
        counts = torch.zeros(len(self._window), vocabulary + 1)
        ids = self._window.where(self._window >= 0, vocabulary)
        counts.scatter_add_(1, ids, torch.ones(ids.shape))
        counts = counts[:, :vocabulary]
        return copy_to_device(self._frequency * counts + self._presence * (counts > 0), device)

    def add(self, tokens: Tensor) -> None:
        """Append the picked tokens, (sequences), to the windows."""
        self._window = torch.cat((self._window[:, 1:], tokens.unsqueeze(1)), 1)


def _penalised(sequence: ActiveSequence) -> bool:
    return sequence.job.sampling.penalises


def _static_bias(job: Job, vocabulary: int) -> Row:
    """Return the bias of a job's scores that is the same in all steps, (vocabulary)."""
    if job.added is None:
        job.added = _added(job.sampling)
    ids, values = job.added
    bias = np.full(vocabulary, -np.inf if job.sampling.allowed else 0, np.float32)
    bias[ids] = values
    return bias


def _added(sampling: Sampling) -> Added:
    """Return what is added to the scores of some ids."""
    added = dict.fromkeys(sampling.allowed, 0.0)
    for token, bias in sampling.logit_bias:
        if not sampling.allowed or token in added:
            added[token] = bias
    return np.fromiter(added, np.int64, len(added)), np.array([*added.values()], np.float32)


def _mask_disallowed(logits: Tensor, row: int, constraint_state: TextPosition) -> None:
    """Set the scores of the tokens that a constraint does not allow to -inf, in place."""
    ids = copy_to_device(torch.from_numpy(constraint_state.allowed_ids), logits.device)
    scores = logits[row]
    allowed_scores = scores.index_select(0, ids)
    scores.fill_(-torch.inf).index_copy_(0, ids, allowed_scores)
