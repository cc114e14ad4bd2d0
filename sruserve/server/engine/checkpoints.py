"""States that streams tell on their way, so that a client that is cut off can go on from there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sruserve.server.engine.jobs import Generated, Snapshot
from sruserve.server.engine.moves import Move
from sruserve.server.engine.states import States
from sruserve.server.engine.streams import Stream


@dataclass(slots=True)
class _Checkpoint:
    """A piece of text that waits for the row of the state behind it, among the move's states."""

    stream: Stream
    piece: Generated
    state: Snapshot
    move: Move
    index: int


class Checkpoints:
    """Who waits for a state that its next piece of text carries. A stream has one at a time."""

    def __init__(self, states: States) -> None:
        self._states = states
        self._open: list[_Checkpoint] = []

    def begin(self, streams: Sequence[Stream], now: float, spare: int) -> None:
        """Take what streams have written, and begin to copy the states behind it.

        spare: rows that may stay in use until they are copied; without them, it waits.
        """
        crowded = len(self._open) + len(streams) > spare
        for part in self._states.parts(streams):
            move = self._states.copy(part)
            for index, stream in enumerate(part):
                stream.checkpoint = True
                self._open.append(_Checkpoint(stream, *stream.mark(now), move, index))
            if crowded:
                move.wait()

    def ended(self) -> Iterator[tuple[Stream, Generated]]:
        """The pieces whose states are there; one whose state could not be had comes without it."""
        going, self._open = self._open, []
        for checkpoint in going:
            move, stream = checkpoint.move, checkpoint.stream
            if not move.done():
                self._open.append(checkpoint)
                continue
            stream.checkpoint = False
            if stream.dropped:
                continue
            state = None
            if move.error is None and move.states[checkpoint.index].isfinite().all():
                state = replace(checkpoint.state, row=move.states[checkpoint.index].numpy())
            yield stream, replace(checkpoint.piece, state=state)
