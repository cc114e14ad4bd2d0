"""Streams that are done, while the state that their last result carries is on its way out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from sruserve.server.engine.jobs import Ending, Keep, Kind, Row
from sruserve.server.engine.moves import Move
from sruserve.server.engine.residents import Resident
from sruserve.server.engine.states import States, trouble
from sruserve.server.engine.streams import Stream, not_finite
from sruserve.server.errors import ServeError, faults

Stopped = tuple[Stream, Ending]  # a stream, and why it ends


@dataclass(slots=True)
class Departure:
    """A stream that is done. row: its state as its job asks for it. error: why there is none."""

    stream: Stream
    ending: Ending
    row: Row | Resident | None = None
    error: ServeError | None = None
    move: Move | None = None
    index: int = 0  # among the move's states


class Departures:
    """Who waits for a state, in order."""

    def __init__(self, states: States) -> None:
        self._states = states
        self._open: list[Departure] = []

    def begin(self, stopped: Sequence[Stopped]) -> None:
        """Streams are done: have their states kept or copied, if their jobs ask for it."""
        try:
            finite = self._finite([stream for stream, _ in stopped])
        except Exception as error:
            problem = trouble(error)
            self._open += [Departure(*one, error=problem) for one in stopped]
            return
        for job, group in groupby(stopped, key=lambda one: one[0].job):
            departures = [Departure(stream, ending) for stream, ending in group]
            try:
                if finite and not all(finite.get(each.stream, True) for each in departures):
                    raise not_finite()
                if job.keep is Keep.RESIDENT:
                    for departure in departures:
                        departure.row = self._states.keep(departure.stream)
                elif job.keep is Keep.SNAPSHOT:
                    self._take(departures)
            except faults() as error:
                for departure in departures:
                    departure.error = trouble(error)
            self._open += departures

    def ended(self) -> Iterator[Departure]:
        """Those whose state is there, or will never be. Streams of jobs that ended are left out.

        A stream's last result waits for its checkpoint.
        """
        going, self._open = self._open, []
        for departure in going:
            move = departure.move
            if departure.stream.checkpoint or (move is not None and not move.done()):
                self._open.append(departure)
                continue
            if departure.stream.dropped:
                self.undo(departure)
                continue
            if move is not None and move.error is not None:
                departure.error = trouble(move.error)
            elif move is not None:
                departure.row = move.states[departure.index].numpy()
            yield departure

    def undo(self, departure: Departure) -> None:
        """Drop a state that was kept for a result that is not delivered."""
        if isinstance(departure.row, Resident):
            self._states.residents.drop(departure.row)

    def _finite(self, streams: Sequence[Stream]) -> dict[Stream, bool]:
        """Whether those states are finite that nobody looks at later.

        They stay here, or show by nothing but the text that was sampled.
        """
        unseen = [
            stream
            for stream in streams
            if (stream.job.kind is Kind.GENERATE or stream.job.keep is Keep.RESIDENT)
            and stream.source >= 0
        ]
        return dict(zip(unseen, self._states.finite(unseen), strict=True))

    def _take(self, departures: Sequence[Departure]) -> None:
        moving = {}
        states = self._states
        for departure in departures:
            stream = departure.stream
            if stream.source >= 0 and not states.moves.lane.staged:
                departure.row = states.pool.rows[stream.source].numpy().copy()
            elif stream.source >= 0:
                moving[stream] = departure
            elif isinstance(stream.start, np.ndarray):  # nothing was added to it
                departure.row = stream.start
            else:
                departure.row = np.zeros(states.pool.width, np.float32)
        for part in states.parts(list(moving)):
            move = states.take(part)
            for index, stream in enumerate(part):
                moving[stream].move, moving[stream].index = move, index
