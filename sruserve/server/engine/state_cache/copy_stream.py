"""Copy streams between the device and host memory: asynchronous on a GPU, inline on the CPU."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor


class CopyEvent(Protocol):
    """The completion of a group of copies."""

    def done(self) -> bool:
        """Whether the copies are complete. Never blocks."""
        ...

    def wait(self) -> None:
        """Block the host until the copies are complete."""
        ...


class CopyStream(Protocol):
    """An ordered queue of copies that runs alongside the steps.

    is_async: copies may continue after `run` has returned, so the caller's memory is staged.
    """

    is_async: bool

    def allocate(self, rows: int, width: int) -> Tensor:
        """Allocate host memory that allows fast copies, (rows, width), float32."""
        ...

    def run(self, copy: Callable[[], None]) -> CopyEvent:
        """Run `copy` after all writes of the steps so far. Raises the errors of `copy`."""
        ...

    def wait_event(self, event: CopyEvent) -> None:
        """Make later steps wait for `event`. The host does not wait."""
        ...


class InlineCopyStream:
    """Copies at once, for the CPU, where device and host share one memory."""

    is_async = False

    def allocate(self, rows: int, width: int) -> Tensor:
        return torch.empty(rows, width)

    def run(self, copy: Callable[[], None]) -> CopyEvent:
        copy()
        return _COMPLETED

    def wait_event(self, event: CopyEvent) -> None:
        pass


class CudaCopyStream:
    """A CUDA stream for copies: it waits for the steps, and they wait for its events.

    Used by the thread that runs the steps.
    """

    is_async = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def allocate(self, rows: int, width: int) -> Tensor:
        return torch.empty(rows, width, pin_memory=True)

    def run(self, copy: Callable[[], None]) -> CopyEvent:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        # Tensors that `copy` allocates belong to this stream, so their memory is not reused early.
        with torch.cuda.stream(self._stream):
            try:
                copy()
            except BaseException:
                self._stream.synchronize()  # copies may have begun, and their memory is reused
                raise
            event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return _CudaEvent(event)

    def wait_event(self, event: CopyEvent) -> None:
        assert isinstance(event, _CudaEvent)
        torch.cuda.current_stream(self._device).wait_event(event.event)


def copy_stream_for(device: torch.device) -> CopyStream:
    """Create the kind of copy stream that suits a device."""
    return CudaCopyStream(device) if device.type == "cuda" else InlineCopyStream()


class _CompletedEvent:
    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass


_COMPLETED = _CompletedEvent()


class _CudaEvent:
    def __init__(self, event: torch.cuda.Event) -> None:
        self.event = event

    def done(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()
