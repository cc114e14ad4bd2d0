"""Finished sequences whose last result waits for its state."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from sruserve.server.engine.results import Finish
from sruserve.server.engine.sequence import ActiveSequence
from sruserve.server.engine.sequence_results import not_finite
from sruserve.server.engine.snapshot import Row, StateOutput
from sruserve.server.engine.state_cache.cache import CachedState
from sruserve.server.engine.state_cache.transfers import Transfer
from sruserve.server.engine.state_manager import StateManager, transfer_error
from sruserve.server.errors import ServeError, faults

Stopped = tuple[ActiveSequence, Finish]  # a sequence, and the reason why it ends


@dataclass(slots=True)
class PendingFinish:
    """A finished sequence.

    row: its end state, in the form that its job requests. error: the reason why there is no state.
    index: the state's position in the transfer's `states`.
    """

    sequence: ActiveSequence
    finish: Finish
    row: Row | CachedState | None = None
    error: ServeError | None = None
    transfer: Transfer | None = None
    index: int = 0


class FinishQueue:
    """Finished sequences that wait for their end states, in order."""

    def __init__(self, states: StateManager) -> None:
        self._states = states
        self._waiting: list[PendingFinish] = []

    def begin(self, stopped: Sequence[Stopped]) -> None:
        """Cache the end states of finished sequences, or start copying them, as their jobs ask."""
        try:
            infinite = self._infinite([sequence for sequence, _ in stopped])
        except Exception as error:
            problem = transfer_error(error)
            self._waiting += [PendingFinish(*entry, error=problem) for entry in stopped]
            return
        for job, group in groupby(stopped, key=lambda entry: entry[0].job):
            pending_finishes = [PendingFinish(sequence, finish) for sequence, finish in group]
            try:
                if infinite and any(p.sequence in infinite for p in pending_finishes):
                    raise not_finite()
                if job.state_output is StateOutput.CACHED:
                    for pending in pending_finishes:
                        pending.row = self._states.insert_in_cache(pending.sequence)
                elif job.state_output is StateOutput.COPY:
                    self._copy_states(pending_finishes)
            except faults() as error:
                for pending in pending_finishes:
                    pending.error = transfer_error(error)
            self._waiting += pending_finishes

    def completed(self) -> Iterator[PendingFinish]:
        """Yield the sequences whose state has arrived or failed, except those of ended jobs.

        A sequence's last result waits for its intermediate state.
        """
        waiting, self._waiting = self._waiting, []
        for pending in waiting:
            transfer = pending.transfer
            if pending.sequence.checkpoint_pending or (
                transfer is not None and not transfer.done()
            ):
                self._waiting.append(pending)
                continue
            if pending.sequence.dropped:
                self.undo(pending)
                continue
            if transfer is not None and transfer.error is not None:
                pending.error = transfer_error(transfer.error)
            elif transfer is not None:
                pending.row = transfer.states[pending.index].numpy()
            yield pending

    def undo(self, pending: PendingFinish) -> None:
        """Free the cached state of a result that is not delivered."""
        if isinstance(pending.row, CachedState):
            self._states.cache.free(pending.row)

    def _infinite(self, sequences: Sequence[ActiveSequence]) -> set[ActiveSequence]:
        """Those sequences whose state is not finite, and whose state no later code checks.

        Such a state stays in the cache, or affects only the sampled text.
        """
        unchecked = [
            sequence
            for sequence in sequences
            if (sequence.job.kind.samples or sequence.job.state_output is StateOutput.CACHED)
            and sequence.source >= 0
        ]
        finite = zip(unchecked, self._states.finite(unchecked), strict=True)
        return {sequence for sequence, is_finite in finite if not is_finite}

    def _copy_states(self, pending_finishes: Sequence[PendingFinish]) -> None:
        to_transfer = {}
        states = self._states
        for pending in pending_finishes:
            sequence = pending.sequence
            if sequence.source >= 0 and not states.transfers.copy_stream.is_async:
                pending.row = states.pool.rows[sequence.source].numpy().copy()
            elif sequence.source >= 0:
                to_transfer[sequence] = pending
            elif isinstance(sequence.start, np.ndarray):  # no input was added to it
                pending.row = sequence.start
            else:
                pending.row = np.zeros(states.pool.width, np.float32)
        for batch in states.transfer_batches(list(to_transfer)):
            transfer = states.download(batch)
            for index, sequence in enumerate(batch):
                to_transfer[sequence].transfer, to_transfer[sequence].index = transfer, index
