"""Side streams: work beside the caller's own, asynchronous on a GPU, inline on the CPU."""

from collections.abc import Callable
from typing import Protocol

import torch

from sruserve.kernels.captures import new_stream


class StreamEvent(Protocol):
    """The completion of work on a side stream. It keeps the work's tensors."""

    def done(self) -> bool:
        """Whether the work is complete. Never blocks."""
        ...

    def wait(self) -> None:
        """Block the host until the work is complete."""
        ...


class SideStream(Protocol):
    """Runs work concurrently with the caller's own, in the order of submission."""

    def run(self, work: Callable[[], object]) -> StreamEvent:
        """Start `work` after everything the caller has started. Raises the errors of `work`."""
        ...

    def wait_event(self, event: StreamEvent) -> None:
        """Order the caller's next work after the event's. The host does not wait."""
        ...


class InlineStream:
    """No side stream, for the CPU: work runs at once."""

    def run(self, work: Callable[[], object]) -> StreamEvent:
        work()
        return _COMPLETED

    def wait_event(self, event: StreamEvent) -> None:
        pass


class CudaSideStream:
    """A second CUDA stream of the device, used by the thread that runs the steps.

    priority: -1 lets its small programs run before the large ones of the caller's stream.
    """

    def __init__(self, device: torch.device, priority: int = 0) -> None:
        self._stream = new_stream(device, priority)

    def run(self, work: Callable[[], object]) -> StreamEvent:
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        # Tensors that `work` allocates belong to this stream, so their memory is not reused early.
        with torch.cuda.stream(self._stream):
            try:
                work()
                event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(self._stream)
            except BaseException:
                self._stream.synchronize()  # a part may have begun, and its memory is reused
                raise
        # Keep `work`: its tensors must not be reused before somebody waited for its end.
        return _CudaEvent(event, work)

    def wait_event(self, event: StreamEvent) -> None:
        assert isinstance(event, _CudaEvent)
        torch.cuda.current_stream(self._stream.device).wait_event(event.event)


def side_stream_for(device: torch.device) -> SideStream:
    """Create the kind of side stream that suits a device, with priority over the caller's."""
    return CudaSideStream(device, priority=-1) if device.type == "cuda" else InlineStream()


class _CompletedEvent:
    def done(self) -> bool:
        return True

    def wait(self) -> None:
        pass


_COMPLETED = _CompletedEvent()


class _CudaEvent:
    def __init__(self, event: torch.cuda.Event, work: Callable[[], object]) -> None:
        self.event, self._work = event, work

    def done(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()
