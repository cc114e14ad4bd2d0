"""The states of active sequences: their start states, pool rows and end states."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import numpy as np
import torch

from sruserve.kernels.oom import is_out_of_memory
from sruserve.model.state import StateLayout
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.job import Job
from sruserve.server.engine.sequence import ActiveSequence
from sruserve.server.engine.snapshot import StateOutput
from sruserve.server.engine.state_cache.cache import CachedState, CacheFull, StateCache
from sruserve.server.engine.state_cache.copy_stream import CopyStream
from sruserve.server.engine.state_cache.pool import HostRows, StatePool
from sruserve.server.engine.state_cache.transfers import Transfer, TransferQueue
from sruserve.server.errors import (
    EngineFailure,
    OutOfDeviceMemory,
    Overloaded,
    ServeError,
    StateExpired,
    faults,
)

_MAX_ROWS = 1 << 20
_MAX_RESERVE = 1024  # rows that the cache leaves to running sequences, even without host memory


class StateManager:
    """Assigns pool rows to sequences and releases them. Used by the engine's thread alone.

    A sequence may hold a state once it is admitted. It then has its own row, reads the row of a
    cached state, or starts from zeros and gets its first row after its first step. The pool has
    room for one more row per admitted sequence, which a step writes.
    """

    def __init__(
        self,
        layout: StateLayout,
        limits: EngineConfig,
        device: torch.device,
        copy_stream: CopyStream,
    ) -> None:
        row_bytes = max(1, layout.nbytes)
        rows = min(limits.state_pool_bytes // row_bytes, _MAX_ROWS)
        self.pool = StatePool(rows, layout, device)
        self.transfers = TransferQueue(self.pool, copy_stream)
        self._reserve = max(2, min(rows // 4, _MAX_RESERVE))
        host = HostRows(limits.state_host_bytes // row_bytes, layout.width, copy_stream.allocate)
        self.cache = StateCache(self.pool, self.transfers, host, self._reserve)
        self._max_sequences = limits.max_batch_tokens
        self._running_rows = 0  # rows of admitted sequences
        self.launched_rows = 0  # rows that bursts write which are not settled

    @property
    def max_admitted(self) -> int:
        """The most sequences that fit at a time, each with a row to read and one to write."""
        return self._rows // 2

    def spare_rows(self, sequences: int) -> int:
        """The number of rows that `sequences` admitted sequences do not need."""
        return self._rows - 2 * sequences

    @property
    def _rows(self) -> int:
        """The rows of admitted sequences, those that bursts write for them, and free ones."""
        others = len(self.pool) - self._running_rows - self.launched_rows
        return self.pool.capacity - others

    @property
    def busy(self) -> bool:
        """Whether any transfer of states is in flight."""
        return self.transfers.busy

    def retain_inputs(self, sequences: Sequence[ActiveSequence]) -> None:
        """Retain a job's cached start states, and reserve room for the end states to cache.

        If that is impossible, raises `ServeError` and changes nothing.
        """
        width = self.pool.width
        if any(isinstance(s.start, np.ndarray) and s.start.shape != (width,) for s in sequences):
            raise EngineFailure(f"a state of this model has {width} numbers; send another one")
        starts = [s.cached_start for s in sequences if s.cached_start is not None]
        if any(cached.dropped for cached in starts):
            raise StateExpired(
                "the state of the stream that this request continues no longer exists; "
                "start a new stream"
            )
        if sequences and sequences[0].job.state_output is StateOutput.CACHED:
            try:
                self.cache.reserve(len(sequences))
            except CacheFull as error:
                raise Overloaded(
                    f"{error}: drop streams, or ask the operator to raise "
                    "SRUSERVE_STATE_POOL_BYTES or SRUSERVE_STATE_HOST_BYTES"
                ) from None
            for sequence in sequences:
                sequence.reserved = True
        if starts:
            for sequence in sequences:
                if sequence.cached_start is not None:
                    self.cache.retain(sequence.cached_start)
                    sequence.retained = True

    def make_room(self, sequences: int) -> None:
        """Start offloading idle states if `sequences` running sequences need their rows."""
        cached = self.cache.on_device
        if cached:
            rows = max(self._reserve, 2 * min(sequences, self._max_sequences))
            self.cache.offload(rows - (self.pool.capacity - cached))

    def admit(
        self, sequences: Sequence[ActiveSequence], fail: Callable[[Job, ServeError], None]
    ) -> None:
        """Let sequences hold a state, and start transferring their start states to rows.

        fail: called with each job whose transfers could not start, and the error.
        """
        to_transfer = [
            sequence
            for sequence in sequences
            if sequence.start is not None and self._needs_transfer(sequence)
        ]
        for job, group in groupby(to_transfer, key=lambda sequence: sequence.job):
            own_sequences = list(group)
            try:
                self._upload([s for s in own_sequences if s.cached_start is None])
                self._load([s for s in own_sequences if s.cached_start is not None])
            except faults() as error:
                fail(job, transfer_error(error))

    def _needs_transfer(self, sequence: ActiveSequence) -> bool:
        """Whether the start state has to be transferred to a row. Pins one that is in a row."""
        cached = sequence.cached_start
        if cached is None:
            used = len(sequence.inputs) > 0 or sequence.job.state_output is StateOutput.CACHED
            return used and self.transfers.copy_stream.is_async
        if cached.row < 0:
            return True
        self.cache.pin(cached)
        sequence.pinned = True
        return False

    def is_ready(self, sequence: ActiveSequence) -> bool:
        """Whether a step can read the start state. Raises the error of its transfer."""
        if sequence.upload is None:
            return True
        if not sequence.upload.done():
            return False
        error, sequence.upload = sequence.upload.error, None
        if error is not None:
            raise transfer_error(error)
        return True

    def wait_ready(self, sequences: Sequence[ActiveSequence]) -> None:
        """Make later steps wait for the uploads of `sequences`. The host does not wait."""
        uploading = [sequence for sequence in sequences if sequence.upload is not None]
        for upload in dict.fromkeys(sequence.upload for sequence in uploading):
            if upload is not None:
                upload.wait_event()
        for sequence in uploading:
            sequence.upload = None

    def advance(self, sequence: ActiveSequence, row: int) -> None:
        """Make a fresh row the sequence's own, in place of its old one or its start state."""
        self._release_row(sequence)
        self._unpin(sequence)
        sequence.row = row
        self._running_rows += 1

    def replace_rows(self, rows: list[int]) -> None:
        """Release rows of sequences that have got fresh ones, or that ended before they did."""
        if not self.transfers.busy:
            self.pool.release_all(rows)
            return
        for row in rows:
            self.transfers.release(row)

    def finite(self, sequences: Sequence[ActiveSequence]) -> Iterator[bool]:
        """Whether every number of each sequence's state is finite."""
        return self.pool.finite([sequence.source for sequence in sequences])

    def insert_in_cache(self, sequence: ActiveSequence) -> CachedState:
        """Insert a sequence's end state into the cache, instead of releasing its row."""
        owns_row = sequence.row >= 0
        row = sequence.row if owns_row else self._copy_of_source(sequence)
        try:
            cached = self.cache.insert(row)
        except BaseException:
            if not owns_row:
                self.pool.release(row)
            raise
        if owns_row:
            self._detach(sequence)
        sequence.reserved = False
        return cached

    def copy(self, sequences: Sequence[ActiveSequence]) -> Transfer:
        """Start copying the rows of sequences that continue; at most `transfers.max_rows`."""
        return self.transfers.download([sequence.row for sequence in sequences])

    def download(self, sequences: Sequence[ActiveSequence]) -> Transfer:
        """Start copying the end states of sequences, and release their own rows."""
        transfer = self.transfers.download([sequence.source for sequence in sequences])
        for sequence in sequences:
            self._release_row(sequence)
        return transfer

    def free(self, sequence: ActiveSequence) -> None:
        """Release all rows, pins, reservations and references that a sequence holds."""
        self._release_row(sequence)
        self._unpin(sequence)
        if sequence.reserved:
            sequence.reserved = False
            self.cache.unreserve()
        if sequence.retained and sequence.cached_start is not None:
            self.cache.release(sequence.cached_start)
        sequence.retained = False

    def _upload(self, sequences: Sequence[ActiveSequence]) -> None:
        for batch in self.transfer_batches(sequences):
            rows = self._assign_rows(batch)
            states = [torch.from_numpy(s.start) for s in batch if isinstance(s.start, np.ndarray)]
            transfer = self.transfers.upload(states, rows)
            for sequence in batch:
                sequence.upload = transfer

    def _load(self, sequences: Sequence[ActiveSequence]) -> None:
        for batch in self.transfer_batches(sequences):
            rows = self._assign_rows(batch)
            transfer = self.cache.load([s.cached_start for s in batch if s.cached_start], rows)
            for sequence in batch:
                sequence.upload = transfer

    def transfer_batches(
        self, sequences: Sequence[ActiveSequence]
    ) -> Iterator[Sequence[ActiveSequence]]:
        """Split sequences into batches that each fit one transfer."""
        max_rows = self.transfers.max_rows
        return (sequences[first : first + max_rows] for first in range(0, len(sequences), max_rows))

    def _copy_of_source(self, sequence: ActiveSequence) -> int:
        (row,) = self.pool.acquire(1)
        if sequence.source >= 0:
            self.pool.rows[row].copy_(self.pool.rows[sequence.source])
        elif isinstance(sequence.start, np.ndarray):
            self.pool.rows[row] = torch.from_numpy(sequence.start)
        return row

    def _assign_rows(self, sequences: Sequence[ActiveSequence]) -> list[int]:
        rows = self.pool.acquire(len(sequences))
        for sequence, row in zip(sequences, rows, strict=True):
            sequence.row = row
        self._running_rows += len(rows)
        return rows

    def _detach(self, sequence: ActiveSequence) -> int:
        row, sequence.row = sequence.row, -1
        self._running_rows -= 1
        return row

    def _release_row(self, sequence: ActiveSequence) -> None:
        if sequence.row >= 0:
            self.transfers.release(self._detach(sequence))

    def _unpin(self, sequence: ActiveSequence) -> None:
        if sequence.pinned and sequence.cached_start is not None:
            self.cache.unpin(sequence.cached_start)
        sequence.pinned = False


def transfer_error(error: BaseException) -> ServeError:
    """Return the error for a job whose states could not be transferred."""
    if isinstance(error, ServeError):
        return error
    if is_out_of_memory(error):
        return OutOfDeviceMemory()
    return EngineFailure(
        "a state could not be moved; retry, or start a new stream; the server's log has the reason"
    )
