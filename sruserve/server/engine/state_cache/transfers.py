"""Transfers of states between pool rows and host memory, concurrent with the steps."""

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from sruserve.kernels.side_stream import StreamEvent
from sruserve.server.engine.state_cache.copy_stream import CopyStream
from sruserve.server.engine.state_cache.pool import HostRows, StatePool, indices

_STAGING_BYTES = 32 << 20
_MAX_STAGING_ROWS = 256
# Bytes that the host copies in its memory while it starts one copy to or from a GPU: about 24 us
# beside an H100, at some 8 kB a us.
_CALL_BYTES = 200_000
_StagedLaunch = Callable[[list[int]], StreamEvent]  # starts copies by way of these staging rows


class Transfer:
    """A transfer of some states. Either all of them arrive, or none, and `error` says why.

    states: the copies that `TransferQueue.download` made, in memory of their own, once it is done.
    """

    __slots__ = ("_done", "_event", "_owner", "callbacks", "error", "rows", "states")

    def __init__(self, owner: "TransferQueue", rows: Sequence[int]) -> None:
        self.rows = rows
        self.error: Exception | None = None
        self.states: list[Tensor] = []
        self.callbacks: list[Callable[[], None]] = []
        self._owner = owner
        self._event: StreamEvent | None = None
        self._done = False

    def done(self) -> bool:
        """Whether the transfer has ended, with or without an error. Never blocks."""
        if not self._done and self._event is not None:
            try:
                if self._event.done():
                    self.finish()
            except Exception as error:
                self.finish(error)
        return self._done

    def wait(self) -> None:
        """Block the host until the transfer has ended."""
        while not self.launched:
            self._owner.wait_for_staging()
        if not self._done and self._event is not None:
            try:
                self._event.wait()
                self.finish()
            except Exception as error:
                self.finish(error)

    @property
    def launched(self) -> bool:
        """Whether the transfer no longer waits for staging memory."""
        return self._done or self._event is not None

    def wait_event(self) -> None:
        """Make later steps wait for the transfer. The host does not wait."""
        if not self._done:
            assert self._event is not None
            self._owner.copy_stream.wait_event(self._event)

    def launch(self, start_copies: Callable[[], StreamEvent]) -> None:
        """Start the copies. An error ends the transfer."""
        try:
            self._event = start_copies()
        except Exception as error:
            self.finish(error)

    def run_inline(self, copy: Callable[[], None]) -> "Transfer":
        """Start and end the transfer, where device and host share one memory: nothing is held."""
        try:
            copy()
        except Exception as error:
            self.error = error
        self._done = True
        return self

    def finish(self, error: Exception | None = None) -> None:
        """Record the outcome, and release everything that the transfer held."""
        self._done, self.error = True, error
        callbacks, self.callbacks = self.callbacks, []
        for callback in callbacks:
            try:
                callback()
            except Exception as failed:  # for example, no memory for the downloaded states
                self.error = failed
        self._owner._on_done(self)


class TransferQueue:
    """Transfers states for the engine's thread. A row is released only after its transfer ends.

    staging_bytes: host memory through which the states of requests pass. A transfer that finds
        none free is launched once there is some. States of scattered host rows pass through it
        too, if some is free: together they are one copy, by themselves one each.
    """

    def __init__(
        self, pool: StatePool, copy_stream: CopyStream, staging_bytes: int = _STAGING_BYTES
    ) -> None:
        self.copy_stream = copy_stream
        self._pool = pool
        rows = max(2, min(_MAX_STAGING_ROWS, staging_bytes // max(1, pool.row_bytes)))
        self._staging = HostRows(rows, pool.width, copy_stream.allocate)
        self.max_rows = rows // 2  # states of one transfer
        self._in_flight: dict[int, Transfer] = {}  # the last transfer of each row
        self._release_when_done: set[int] = set()  # rows to release after their transfer
        self._launched: deque[Transfer] = deque()
        self._waiting: deque[tuple[Transfer, _StagedLaunch]] = deque()

    @property
    def busy(self) -> bool:
        """Whether any transfer is in flight or waits for staging memory."""
        return bool(self._launched or self._waiting)

    def upload(self, states: Sequence[Tensor], rows: Sequence[int]) -> Transfer:
        """Write states, each (width) float32 in host memory, to pool rows; at most `max_rows`."""
        transfer = Transfer(self, rows)
        if not self.copy_stream.is_async:
            return transfer.run_inline(lambda: self._upload_inline(states, rows))

        def launch(staging_rows: list[int]) -> StreamEvent:
            for staging_row, state in zip(staging_rows, states, strict=True):
                self._staging[staging_row].copy_(_checked(state, self._pool.width))
            return self._copy_to_device(self._staging, staging_rows, rows)

        return self._stage(transfer, launch)

    def download(self, rows: Sequence[int]) -> Transfer:
        """Copy pool rows to the transfer's `states`, in memory of their own; at most `max_rows`."""
        transfer = Transfer(self, rows)
        if not self.copy_stream.is_async:
            return transfer.run_inline(lambda: self._download_inline(transfer))

        def launch(staging_rows: list[int]) -> StreamEvent:
            def copy_out() -> None:
                if transfer.error is None:
                    transfer.states = [self._staging[row].clone() for row in staging_rows]

            transfer.callbacks.insert(0, copy_out)  # before the staging rows are released
            return self._copy_to_host(rows, self._staging, staging_rows)

        return self._stage(transfer, launch)

    def load(self, host: HostRows, host_rows: Sequence[int], rows: Sequence[int]) -> Transfer:
        """Copy rows of host memory that the copy stream allocated to pool rows."""
        transfer = Transfer(self, rows)
        staging_rows = self._staging_for(host_rows)
        if not staging_rows:
            return self._launch(transfer, lambda: self._copy_to_device(host, host_rows, rows))

        def launch() -> StreamEvent:
            self._staging.copy_rows(staging_rows, host, host_rows)
            return self._copy_to_device(self._staging, staging_rows, rows)

        transfer.callbacks.append(lambda: self._staging.release(staging_rows))
        return self._launch(transfer, launch)

    def offload(self, rows: Sequence[int], host: HostRows, host_rows: Sequence[int]) -> Transfer:
        """Copy pool rows to ascending rows of host memory that the copy stream allocated."""
        transfer = Transfer(self, rows)
        staging_rows = self._staging_for(host_rows)
        if not staging_rows:
            return self._launch(transfer, lambda: self._copy_to_host(rows, host, host_rows))

        def scatter() -> None:
            if transfer.error is None:
                host.copy_rows(host_rows, self._staging, staging_rows)

        transfer.callbacks += [scatter, lambda: self._staging.release(staging_rows)]
        return self._launch(transfer, lambda: self._copy_to_host(rows, self._staging, staging_rows))

    def on_done(self, transfer: Transfer, callback: Callable[[], None]) -> None:
        """Call `callback` on the engine's thread once `transfer` has ended; at once if it has."""
        if transfer.done():
            callback()
        else:
            transfer.callbacks.append(callback)

    def release(self, row: int) -> None:
        """Release a pool row as soon as no transfer uses it."""
        transfer = self._in_flight.get(row)
        if transfer is None or transfer.done():
            self._pool.release(row)
        else:
            self._release_when_done.add(row)

    def poll(self) -> None:
        """Finish completed transfers, and launch those that found no memory. Never blocks."""
        while self._launched and self._launched[0].done():
            self._launched.popleft()
        while self._waiting and self._staging.free >= len(self._waiting[0][0].rows):
            self._launch_staged(*self._waiting.popleft())

    def wait_for_staging(self) -> None:
        """Block the host until a transfer has ended, so that another one may be launched."""
        if self._launched:
            self._launched[0].wait()
        self.poll()

    def synchronize(self) -> None:
        """Block the host until all transfers have ended."""
        while self.busy:
            self.wait_for_staging()

    def _on_done(self, transfer: Transfer) -> None:
        """Release the rows that waited for a transfer, unless a later one uses them.

        Called by the transfer.
        """
        for row in transfer.rows:
            if self._in_flight.get(row) is transfer:
                del self._in_flight[row]
                if row in self._release_when_done:
                    self._release_when_done.remove(row)
                    self._pool.release(row)

    def _staging_for(self, host_rows: Sequence[int]) -> list[int]:
        """Claim staging rows for states of these host rows.

        None if copying the states in host memory would take longer than a call for each run of
        rows, or if no staging memory is free: these transfers never wait for it.
        """
        count = len(host_rows)
        calls_saved = sum(row != before + 1 for before, row in pairwise(host_rows))
        if not self.copy_stream.is_async or (
            calls_saved * _CALL_BYTES <= count * self._pool.row_bytes
        ):
            return []
        self.poll()
        if self._waiting or self._staging.free < count:
            return []
        try:
            return self._staging.acquire(count)
        except Exception:  # no memory for it: the host rows themselves are there
            return []

    def _stage(self, transfer: Transfer, launch: _StagedLaunch) -> Transfer:
        for row in transfer.rows:
            self._in_flight[row] = transfer
        if self._waiting or self._staging.free < len(transfer.rows):
            self._waiting.append((transfer, launch))
            return transfer
        return self._launch_staged(transfer, launch)

    def _launch_staged(self, transfer: Transfer, launch: _StagedLaunch) -> Transfer:
        try:
            staging_rows = self._staging.acquire(len(transfer.rows))
        except Exception as error:
            transfer.finish(error)
            return transfer
        transfer.callbacks.append(lambda: self._staging.release(staging_rows))
        return self._launch(transfer, lambda: launch(staging_rows))

    def _launch(self, transfer: Transfer, start_copies: Callable[[], StreamEvent]) -> Transfer:
        for row in transfer.rows:
            self._in_flight[row] = transfer
        transfer.launch(start_copies)
        if not transfer.done():
            self._launched.append(transfer)
        return transfer

    def _upload_inline(self, states: Sequence[Tensor], rows: Sequence[int]) -> None:
        for state, row in zip(states, rows, strict=True):
            self._pool.rows[row] = _checked(state, self._pool.width)

    def _download_inline(self, transfer: Transfer) -> None:
        transfer.states = [self._pool.rows[row].clone() for row in transfer.rows]

    def _copy_to_device(
        self, host: HostRows, host_rows: Sequence[int], rows: Sequence[int]
    ) -> StreamEvent:
        def copy() -> None:
            if len(rows) == 1:
                self._pool.rows[rows[0]].copy_(host[host_rows[0]], non_blocking=True)
                return
            # One copy for each run of host rows, and one scatter: a call costs the host more than
            # the device's second copy.
            staged = torch.empty(len(rows), self._pool.width, device=self._pool.rows.device)
            for memory, first, end in host.runs(host_rows):
                staged[first:end].copy_(memory, non_blocking=True)
            self._pool.rows.index_copy_(0, indices(rows, staged.device), staged)

        return self.copy_stream.run(copy)

    def _copy_to_host(
        self, rows: Sequence[int], host: HostRows, host_rows: Sequence[int]
    ) -> StreamEvent:
        def copy() -> None:
            if len(rows) == 1:
                host[host_rows[0]].copy_(self._pool.rows[rows[0]], non_blocking=True)
                return
            row_indices = indices(rows, self._pool.rows.device)
            gathered = self._pool.rows.index_select(0, row_indices)
            for memory, first, end in host.runs(host_rows):
                memory.copy_(gathered[first:end], non_blocking=True)

        return self.copy_stream.run(copy)


def _checked(state: Tensor, width: int) -> Tensor:
    if state.shape != (width,):
        raise ValueError(f"expected a state of shape ({width},), got {tuple(state.shape)}")
    return state
