"""Where copies between the device and host memory run: beside the steps, or at once."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class Mark(Protocol):
    """The end of some copies."""

    def done(self) -> bool:
        """Whether it is reached. Never waits."""
        ...

    def wait(self) -> None:
        """Hold the host up until it is."""
        ...


class Lane(Protocol):
    """A queue of copies, done in order, beside the steps.

    staged: copies go on after `run` has returned, so memory of others has to be staged.
    """

    staged: bool

    def allocate(self, rows: int, width: int) -> Tensor:
        """Host memory that copies are fast from and to, (rows, width), float32."""
        ...

    def run(self, copy: Callable[[], None]) -> Mark:
        """Copy, after all that the steps so far have written. Raises what `copy` raises."""
        ...

    def join(self, mark: Mark) -> None:
        """Let the steps that follow come after `mark`. The host does not wait."""
        ...


class HostLane:
    """The CPU's: device and host are one memory, and a copy is done when it is asked for."""

    staged = False

    def allocate(self, rows: int, width: int) -> Tensor:
        return torch.empty(rows, width)

    def run(self, copy: Callable[[], None]) -> Mark:
        copy()
        return _REACHED

    def join(self, mark: Mark) -> None:
        pass


class CudaLane:
    """A stream of its own on a GPU, and events both ways. Used by the thread that steps."""

    staged = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def allocate(self, rows: int, width: int) -> Tensor:
        return torch.empty(rows, width, pin_memory=True)

    def run(self, copy: Callable[[], None]) -> Mark:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        # What `copy` allocates belongs to this stream, so it is not used again too early.
        with torch.cuda.stream(self._stream):
            try:
                copy()
            except BaseException:
                self._stream.synchronize()  # nobody knows what was begun, and its memory is reused
                raise
            event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return _Event(event)

    def join(self, mark: Mark) -> None:
        assert isinstance(mark, _Event)
        torch.cuda.current_stream(self._device).wait_event(mark.event)


def lane_of(device: torch.device) -> Lane:
    """The lane that fits a device."""
    return CudaLane(device) if device.type == "cuda" else HostLane()


class _Reached:
    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass


_REACHED = _Reached()


class _Event:
    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def done(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()
