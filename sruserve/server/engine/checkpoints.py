"""Intermediate states: a client that loses its connection can continue a completion from one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sruserve.server.engine.results import Generated
from sruserve.server.engine.sequence import EMPTY_SNAPSHOT, ActiveSequence
from sruserve.server.engine.sequence_results import snapshot_of
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.engine.state_cache.transfers import Transfer
from sruserve.server.engine.state_manager import StateManager


@dataclass(slots=True)
class _IntermediateState:
    """A chunk of text that waits for the row of the state after it.

    index: the row's position in the transfer's `states`.
    """

    sequence: ActiveSequence
    chunk: Generated
    state: Snapshot
    transfer: Transfer
    index: int


class IntermediateStates:
    """Chunks of text that wait for their states. A sequence has at most one at a time."""

    def __init__(self, states: StateManager) -> None:
        self._states = states
        self._waiting: list[_IntermediateState] = []

    def begin(self, sequences: Sequence[ActiveSequence], now: float, spare: int) -> None:
        """Take the text that sequences have generated, and start copying the states after it.

        spare: rows that may stay in use until they are copied. If there are too few, the host
            waits for the copies.
        """
        rows_scarce = len(self._waiting) + len(sequences) > spare
        for batch in self._states.transfer_batches(sequences):
            transfer = self._states.copy(batch)
            for index, sequence in enumerate(batch):
                sequence.checkpoint_pending = True
                chunk = sequence.take_checkpoint(now)
                state = snapshot_of(sequence, EMPTY_SNAPSHOT.row)
                self._waiting.append(_IntermediateState(sequence, chunk, state, transfer, index))
            if rows_scarce:
                transfer.wait()

    def completed(self) -> Iterator[tuple[ActiveSequence, Generated]]:
        """Yield the chunks whose transfers have ended.

        A chunk has no state if the transfer failed or the state is not finite.
        """
        waiting, self._waiting = self._waiting, []
        for checkpoint in waiting:
            transfer, sequence = checkpoint.transfer, checkpoint.sequence
            if not transfer.done():
                self._waiting.append(checkpoint)
                continue
            sequence.checkpoint_pending = False
            if sequence.dropped:
                continue
            state = None
            if transfer.error is None and transfer.states[checkpoint.index].isfinite().all():
                state = replace(checkpoint.state, row=transfer.states[checkpoint.index].numpy())
            yield sequence, replace(checkpoint.chunk, state=state)
