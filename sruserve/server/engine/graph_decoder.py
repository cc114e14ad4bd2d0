"""Decode on a GPU: sequences fill the slots of captured bursts, and are sampled on the device."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from sruserve.kernels.decode import Decoder
from sruserve.kernels.graphs import GraphedDecode, RunningBurst
from sruserve.kernels.slots import Slots
from sruserve.server.engine.ledger import Due, Ledger
from sruserve.server.engine.output_reader import StepResult
from sruserve.server.engine.roster import Integers, Roster, inputs_of
from sruserve.server.engine.sequence import ActiveSequence


@dataclass(slots=True, eq=False)
class Burst:
    """A burst that was launched and is not settled.

    sequences: those that take part. rows, counts: the state row that each writes, and its tokens.
    begun: the time of the launch, on the engine's clock. alone: no other step was launched with it.
    results: those of sequences that are not `plain`, once it is collected; `rows` are then those
        that nobody needs any more.
    """

    sequences: list[ActiveSequence]
    rows: list[int]
    counts: Integers
    begun: float
    alone: bool
    _slots: Integers
    _targets: Integers  # `rows`, as they were launched
    _running: RunningBurst
    results: list[StepResult] = field(default_factory=list)


class GraphDecoder:
    """Runs one model's bursts, of which two may be launched and not settled.

    max_sequences, max_steps: of one burst.
    """

    def __init__(
        self, decoder: Decoder, device: torch.device, max_sequences: int, max_steps: int
    ) -> None:
        self._decoder, self._device = decoder, device
        self._bursts = GraphedDecode(decoder.step, device, max_sequences, max_steps)
        self.max_steps = self._bursts.max_steps
        self._roster, self._stale = Roster(), True  # whether the device has other columns
        self._ledger = Ledger(self.max_steps)

    def holds(self, sequences: Sequence[ActiveSequence]) -> bool:
        """Whether these are the sequences of the slots, in their order."""
        return sequences == self._roster.sequences

    def follows(self, sequences: Sequence[ActiveSequence]) -> bool:
        """Whether the slots hold these sequences, so that a burst can continue the one before.

        If far fewer continue than the slots hold, it cannot: a smaller graph then computes them.
        """
        bucket = self._bursts.bucket(len(self._roster.sequences))
        return (
            not self._stale
            and self._roster.has(sequences)
            and self._bursts.bucket(len(sequences)) == bucket
        )

    def limits(self, sequences: Sequence[ActiveSequence], steps: int) -> Integers:
        """The tokens that the sequence of each slot takes in the next burst of these sequences.

        Unless it `follows`, no burst may be running.
        """
        if not self.follows(sequences):
            self._ledger.close_all()
            self._roster.admit(sequences)
            self._ledger.admit(self._roster.sequences)
            self._bursts.load(self._roster.inputs())
            self._stale = False
        return self._roster.limits(sequences, min(steps, self.max_steps))

    def launch(self, limits: Integers, rows: list[int], begun: float, alone: bool) -> Burst:
        """Launch a burst with `limits`; each sequence with a limit writes one of the pool rows."""
        slots = np.flatnonzero(limits)
        target = np.full(len(limits), -1)
        target[slots] = rows
        running = self._bursts.launch(
            torch.from_numpy(self._roster.row),
            torch.from_numpy(target),
            torch.from_numpy(limits),
            int(limits.max()),
        )
        self._roster.launched(limits, target)
        every = self._roster.sequences
        chosen = (
            list(every)
            if len(slots) == len(every)
            else [self._roster.sequences[slot] for slot in slots.tolist()]
        )
        return Burst(chosen, rows, limits[slots], begun, alone, slots, target[slots], running)

    def collect(self, burst: Burst) -> int:
        """Wait for the oldest burst; returns the tokens that plain texts have got.

        The tokens of sequences that have ended since its launch are dropped.
        """
        tokens = burst._running.tokens().numpy()
        slots, counts = burst._slots, burst.counts
        self._roster.settled(slots, counts, tokens)
        lined = self._ledger.has_line[slots]
        results: list[StepResult] = []
        dropped: list[int] = []
        for i in np.flatnonzero(~lined).tolist():
            sequence, row = burst.sequences[i], burst.rows[i]
            if sequence.decodes:
                own = tokens[: counts[i], slots[i]].tolist()
                results.append(StepResult(sequence, row, 1, own))
            else:
                dropped.append(row)
        replaced = self._ledger.enter(slots[lined], counts[lined], burst._targets[lined], tokens)
        burst.rows, burst.results = replaced + dropped, results
        return int(counts[lined].sum())

    def due(self, now: float, interval: float) -> list[Due]:
        """The plain texts to read after a burst; see `Ledger.due`."""
        return self._ledger.due(self._roster.full, now, interval)

    def leave(self, sequence: ActiveSequence) -> None:
        """Let a sequence that ends have what bursts have added to its text."""
        slot = self._roster.slot_of(sequence)
        if slot is not None:
            self._ledger.close(slot)

    def forget(self) -> None:
        """Forget all sequences. Bursts that are not settled never will be."""
        self._ledger.close_all()
        if self._roster.sequences:
            self._roster = Roster()
            self._ledger.admit([])
        self._stale = True

    def pick(
        self,
        sequences: Sequence[ActiveSequence],
        positions: Sequence[int],
        logits: Tensor,
        step: int,
    ) -> Tensor:
        """Pick a token for each sequence, (sequences) int64 on the device, from scores there.

        positions: of their random numbers in the burst's first step. step: the current one.

        Bursts use the same kernel, so a token does not depend on which of the two picks it.
        """
        slots = Slots(len(sequences), 1, self._device)
        inputs = inputs_of(sequences, [position + step for position in positions])
        slots.load(inputs)
        slots.begin(inputs.source, inputs.target, inputs.limits)
        self._decoder.pick(logits, slots)
        return slots.tokens
