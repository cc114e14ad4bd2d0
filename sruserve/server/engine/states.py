"""The states of the streams in work: where each one comes from, lies and goes."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import numpy as np
import torch

from sruserve.kernels.memory import is_out_of_memory
from sruserve.model.state import StateLayout
from sruserve.server.engine.jobs import Job, Keep
from sruserve.server.engine.lanes import Lane
from sruserve.server.engine.limits import Limits
from sruserve.server.engine.moves import Move, Moves
from sruserve.server.engine.pool import HostRows, StatePool
from sruserve.server.engine.residents import Resident, Residents, ResidentsFull
from sruserve.server.engine.streams import Stream
from sruserve.server.errors import (
    EngineFailure,
    OutOfDeviceMemory,
    Overloaded,
    ServeError,
    StateExpired,
    faults,
)

_MAX_ROWS = 1 << 20
_LOOK_BYTES = 4 << 20  # of states that are looked at together
_RESERVE = 1024  # rows that kept states leave to running streams, however little the host may hold


class States:
    """Gives streams their rows and takes them back. Used by the engine's thread alone.

    A stream that may hold a state has been admitted: it has a row of its own, or reads the one of a
    resident, or starts from zeros and has its first row after its first step. Rows are enough for
    one more per admitted stream, which a step writes.
    """

    def __init__(
        self, layout: StateLayout, limits: Limits, device: torch.device, lane: Lane
    ) -> None:
        row_bytes = max(1, layout.nbytes)
        rows = min(limits.state_pool_bytes // row_bytes, _MAX_ROWS)
        self.pool = StatePool(rows, layout, device)
        self.moves = Moves(self.pool, lane)
        self._reserve = max(2, min(rows // 4, _RESERVE))
        host = HostRows(limits.state_host_bytes // row_bytes, layout.width, lane.allocate)
        self.residents = Residents(self.pool, self.moves, host, self._reserve)
        self._most_streams = limits.max_batch_tokens
        self._own = 0  # rows of admitted streams

    @property
    def room(self) -> int:
        """Streams that may be admitted at a time, with a row to read and one to write each."""
        return (self.pool.capacity - (len(self.pool) - self._own)) // 2

    def spare(self, streams: int) -> int:
        """Rows that so many admitted streams can do without."""
        return self.pool.capacity - (len(self.pool) - self._own) - 2 * streams

    @property
    def busy(self) -> bool:
        """Whether states are on their way."""
        return self.moves.busy

    def receive(self, streams: Sequence[Stream]) -> None:
        """Hold the kept states of a job's streams, or raise `ServeError` and change nothing."""
        width = self.pool.width
        if any(isinstance(s.start, np.ndarray) and s.start.shape != (width,) for s in streams):
            raise EngineFailure(f"a state of this model has {width} numbers; send another one")
        starts = [s.resident for s in streams if s.resident is not None]
        if any(resident.dropped for resident in starts):
            raise StateExpired("the stream that this request continues is no longer kept")
        if streams and streams[0].job.keep is Keep.RESIDENT:
            try:
                self.residents.promise(len(streams))
            except ResidentsFull as error:
                raise Overloaded(
                    f"{error}: drop streams, or ask the operator to raise "
                    "SRUSERVE_STATE_POOL_BYTES or SRUSERVE_STATE_HOST_BYTES"
                ) from None
            for stream in streams:
                stream.promised = True
        if starts:
            for stream in streams:
                if stream.resident is not None:
                    self.residents.use(stream.resident)
                    stream.uses = True

    def make_room(self, streams: int) -> None:
        """Begin to move idle states out of the way of so many streams."""
        kept = self.residents.on_device
        if kept:
            rows = max(self._reserve, 2 * min(streams, self._most_streams))
            self.residents.spill(rows - (self.pool.capacity - kept))

    def admit(self, streams: Sequence[Stream], fail: Callable[[Job, ServeError], None]) -> None:
        """Let streams hold a state, and begin to bring what they start from.

        fail: called with a job for whose states there is no memory.
        """
        moving = [stream for stream in streams if stream.start is not None and self._moves(stream)]
        for job, group in groupby(moving, key=lambda stream: stream.job):
            own = list(group)
            try:
                self._bring([stream for stream in own if stream.resident is None])
                self._fetch([stream for stream in own if stream.resident is not None])
            except faults() as error:
                fail(job, trouble(error))

    def _moves(self, stream: Stream) -> bool:
        """Whether what a stream starts from has to be moved into a row; a row there is held."""
        resident = stream.resident
        if resident is None:
            read = len(stream.inputs) > 0 or stream.job.keep is Keep.RESIDENT
            return read and self.moves.lane.staged
        if resident.row < 0:
            return True
        self.residents.read(resident)
        stream.reads = True
        return False

    def arrived(self, stream: Stream) -> bool:
        """Whether a step can read what the stream starts from; raises what kept it away."""
        if stream.arrival is None:
            return True
        if not stream.arrival.done():
            return False
        error, stream.arrival = stream.arrival.error, None
        if error is not None:
            raise trouble(error)
        return True

    def await_arrivals(self, streams: Sequence[Stream]) -> None:
        """Let the steps that follow come after the arrivals of `streams`."""
        late = [stream for stream in streams if stream.arrival is not None]
        for arrival in dict.fromkeys(stream.arrival for stream in late):
            if arrival is not None:
                arrival.join()
        for stream in late:
            stream.arrival = None

    def advance(self, stream: Stream, row: int) -> None:
        """Make a fresh row the stream's own."""
        self._release_row(stream)
        self._unread(stream)
        stream.row = row
        self._own += 1

    def finite(self, streams: Sequence[Stream]) -> Iterator[bool]:
        """Whether every number of each stream's state is finite."""
        most = max(1, _LOOK_BYTES // max(1, self.pool.row_bytes))
        for first in range(0, len(streams), most):
            states = self.pool.rows
            rows = [stream.source for stream in streams[first : first + most]]
            if states.is_cpu:  # for a few states numpy takes a twentieth of torch's time
                yield from np.isfinite(states.numpy()[rows]).all(1).tolist()
            else:
                yield from states[rows].isfinite().all(1).tolist()

    def keep(self, stream: Stream) -> Resident:
        """Keep the state that a stream ends in, instead of giving its row back."""
        own = stream.row >= 0
        row = stream.row if own else self._copy_of_source(stream)
        try:
            resident = self.residents.keep(row)
        except BaseException:
            if not own:
                self.pool.release(row)
            raise
        if own:
            self._detach(stream)
        stream.promised = False
        return resident

    def copy(self, streams: Sequence[Stream]) -> Move:
        """Begin to copy the rows of streams that go on; at most as many as one move may have."""
        return self.moves.take([stream.row for stream in streams])

    def take(self, streams: Sequence[Stream]) -> Move:
        """Begin to copy the states that streams end in, whose own rows are given back."""
        move = self.moves.take([stream.source for stream in streams])
        for stream in streams:
            self._release_row(stream)
        return move

    def free(self, stream: Stream) -> None:
        """Take back all that a stream holds."""
        self._release_row(stream)
        self._unread(stream)
        if stream.promised:
            stream.promised = False
            self.residents.forgo()
        if stream.uses and stream.resident is not None:
            self.residents.leave(stream.resident)
        stream.uses = False

    def _bring(self, streams: Sequence[Stream]) -> None:
        for part in self.parts(streams):
            rows = self._give_rows(part)
            states = [torch.from_numpy(s.start) for s in part if isinstance(s.start, np.ndarray)]
            move = self.moves.bring(states, rows)
            for stream in part:
                stream.arrival = move

    def _fetch(self, streams: Sequence[Stream]) -> None:
        for part in self.parts(streams):
            rows = self._give_rows(part)
            move = self.residents.fetch([s.resident for s in part if s.resident], rows)
            for stream in part:
                stream.arrival = move

    def parts(self, streams: Sequence[Stream]) -> Iterator[Sequence[Stream]]:
        """Cut streams into as many as one move may have."""
        most = self.moves.most
        return (streams[first : first + most] for first in range(0, len(streams), most))

    def _copy_of_source(self, stream: Stream) -> int:
        (row,) = self.pool.acquire(1)
        if stream.source >= 0:
            self.pool.rows[row].copy_(self.pool.rows[stream.source])
        elif isinstance(stream.start, np.ndarray):
            self.pool.rows[row] = torch.from_numpy(stream.start)
        return row

    def _give_rows(self, streams: Sequence[Stream]) -> list[int]:
        rows = self.pool.acquire(len(streams))
        for stream, row in zip(streams, rows, strict=True):
            stream.row = row
        self._own += len(rows)
        return rows

    def _detach(self, stream: Stream) -> int:
        row, stream.row = stream.row, -1
        self._own -= 1
        return row

    def _release_row(self, stream: Stream) -> None:
        if stream.row >= 0:
            self.moves.release(self._detach(stream))

    def _unread(self, stream: Stream) -> None:
        if stream.reads and stream.resident is not None:
            self.residents.unread(stream.resident)
        stream.reads = False


def trouble(error: BaseException) -> ServeError:
    """What a job is told whose states could not be moved."""
    if isinstance(error, ServeError):
        return error
    if is_out_of_memory(error):
        return OutOfDeviceMemory()
    return EngineFailure("a state could not be moved; see the server's log")
