"""The sequences in the slots of a graph, and what their slots hold, as columns on the host."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sruserve.kernels.slots import WINDOW, DecodeInputs
from sruserve.server.engine.sequence import ActiveSequence

Column = NDArray[Any]
Integers = NDArray[np.int64]

_MAX_TOP_K = (1 << 31) - 1


class Roster:
    """Sequences by slot. A column has a row for each slot, and changes as its sequence does.

    sequences: by slot. Those that have ended stay until others are admitted.
    left: (slots), the tokens that may still be launched. row: (slots), the pool row that the last
        burst launched writes. ahead: (slots), the tokens launched and not settled.
    """

    def __init__(self) -> None:
        self.sequences: list[ActiveSequence] = []
        self._slots: dict[ActiveSequence, int] = {}
        self._columns = _rows_of([])
        self.left, self.row, self.ahead = (np.zeros(0, np.int64) for _ in range(3))
        self._with_checkpoints: list[int] = []
        self._penalised: Integers = np.zeros(0, np.int64)

    def has(self, sequences: Sequence[ActiveSequence]) -> bool:
        """Whether all of these have slots."""
        return sequences == self.sequences or self._slots.keys() >= set(sequences)

    def admit(self, sequences: Sequence[ActiveSequence]) -> None:
        """Give slots to these, and to no others. No burst may be running."""
        kept = [sequence for sequence in sequences if sequence in self._slots]
        new = [sequence for sequence in sequences if sequence not in self._slots]
        slots = np.array([self._slots[sequence] for sequence in kept], np.int64)
        columns = _rows_of(new)
        for name, column in self._columns.items():
            columns[name] = np.concatenate((column[slots], columns[name]))
        self._columns = columns
        left = [sequence.tokens_left for sequence in new]
        self.left = np.concatenate((self.left[slots], np.array(left, np.int64)))
        self.row = np.concatenate((self.row[slots], np.array([s.row for s in new], np.int64)))
        self.ahead = np.zeros(len(sequences), np.int64)
        self.sequences = [*kept, *new]
        self._slots = {sequence: slot for slot, sequence in enumerate(self.sequences)}
        self._with_checkpoints = [
            slot for slot, sequence in enumerate(self.sequences) if sequence.emits_checkpoints
        ]
        self._penalised = np.flatnonzero(columns["penalty"] != 1)

    def limits(self, sequences: Sequence[ActiveSequence], steps: int) -> Integers:
        """The tokens that each slot may take in a burst of these sequences, (slots)."""
        limits = np.minimum(self.left, steps)
        if sequences != self.sequences:
            chosen = np.zeros(len(limits), np.bool_)
            chosen[[self._slots[sequence] for sequence in sequences]] = True
            limits[~chosen] = 0
        for slot in self._with_checkpoints:
            due = self.sequences[slot].checkpoint_in(int(self.ahead[slot]))
            limits[slot] = min(limits[slot], due)
        return limits

    def launched(self, limits: Integers, rows: Integers) -> None:
        """Count a burst: each slot takes its limit, and writes its row."""
        self.left -= limits
        self.ahead += limits
        self.row = np.where(limits > 0, rows, self.row)

    def settled(self, slots: Integers, counts: Integers, tokens: Integers) -> None:
        """Take over the tokens of the oldest burst, (steps, slots), of which each has `counts`."""
        columns = self._columns
        self.ahead[slots] -= counts
        columns["draw"][slots] += counts
        columns["tokens"][slots] = tokens[counts - 1, slots]
        if not len(self._penalised):
            return
        taken = np.zeros(len(self.sequences), np.int64)
        taken[slots] = counts
        window = columns["window"]
        for slot in self._penalised.tolist():
            new = tokens[: taken[slot], slot]
            window[slot] = np.concatenate((window[slot], new))[-WINDOW:]

    @property
    def full(self) -> NDArray[np.bool_]:
        """Whether the sequences have as many tokens as may be sampled, (slots)."""
        full: NDArray[np.bool_] = self.left + self.ahead == 0
        return full

    def slot_of(self, sequence: ActiveSequence) -> int | None:
        """The slot of a sequence, if it has one."""
        return self._slots.get(sequence)

    def inputs(self) -> DecodeInputs:
        """What the slots hold, for a burst that has not begun."""
        tensors = {name: torch.from_numpy(column) for name, column in self._columns.items()}
        none = torch.from_numpy(self.row)
        return DecodeInputs(source=none, target=none, limits=none, **tensors)


def _rows_of(sequences: Sequence[ActiveSequence]) -> dict[str, Column]:
    """The rows of new sequences in each column."""
    sampling = [sequence.job.sampling for sequence in sequences]
    window = np.full((len(sequences), WINDOW), -1)
    for row, sequence in zip(window, sequences, strict=True):
        if sequence.job.sampling.repetition_penalty != 1 and sequence.window:
            row[WINDOW - len(sequence.window) :] = sequence.window

    def floats(values: list[float]) -> NDArray[np.float32]:
        return np.array(values, np.float32)

    return {
        "tokens": np.array([s.pending for s in sequences], np.int64),
        "seed": np.array([s.seed for s in sequences], np.uint64).view(np.int64),
        "choice": np.array([s.choice for s in sequences], np.int64),
        # The pending token is consumed first.
        "draw": np.array([s.steps + 1 for s in sequences], np.int64),
        "temperature": floats([s.temperature for s in sampling]),
        "top_p": floats([s.top_p for s in sampling]),
        "min_p": floats([s.min_p for s in sampling]),
        "penalty": floats([s.repetition_penalty for s in sampling]),
        "top_k": np.array([min(s.top_k, _MAX_TOP_K) for s in sampling], np.int32),
        "window": window,
    }


def inputs_of(sequences: Sequence[ActiveSequence], positions: Sequence[int]) -> DecodeInputs:
    """What slots hold in which sequences pick one token by given scores.

    positions: of their random numbers.
    """
    tensors = {name: torch.from_numpy(column) for name, column in _rows_of(sequences).items()}
    tensors["draw"] = torch.tensor(positions)
    count = len(sequences)
    none, one = torch.full((count,), -1), torch.ones(count, dtype=torch.int64)
    return DecodeInputs(source=none, target=none, limits=one, **tensors)
