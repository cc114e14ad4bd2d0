"""A stand-in for `torch.cuda`: streams, events and captures that fail where those of CUDA would.

Work is a name in a stream, and runs until somebody waits for it. As in CUDA, a capture takes what
its stream gets from any thread, and waiting for the device or the stream invalidates it. As in
torch, streams are handed out in turns, and the process has one capture at a time.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

GPU = torch.device("cuda", 0)
STREAMS = 32  # of each priority
_CLASSES = ("Stream", "Event", "CUDAGraph")
_FUNCTIONS = (
    *("graph", "graph_pool_handle", "current_stream", "default_stream", "set_stream", "stream"),
    *("set_device", "synchronize", "empty_cache"),
)


class CudaError(RuntimeError):
    """An error that CUDA or torch would report."""


class Graph:
    """What a capture has recorded; a replay launches it in the current stream."""

    def __init__(self, cuda: "StandInCuda") -> None:
        self.launches: list[str] = []
        self.is_valid, self._cuda, self.is_complete = True, cuda, False

    def replay(self) -> None:
        if not self.is_complete:
            raise CudaError("called CUDAGraph::replay without a preceding successful capture")
        for launch in self.launches:
            self._cuda.launch(launch)


class Stream:
    """A queue of work. capture: the graph that records it now."""

    def __init__(self, cuda: "StandInCuda") -> None:
        self.device, self._cuda = GPU, cuda
        self.capture: Graph | None = None
        self._submitted: list[str | Event] = []
        self._ended = 0

    @property
    def running(self) -> list[str]:
        return [each for each in self._submitted[self._ended :] if isinstance(each, str)]

    def submit(self, what: str) -> None:
        if self.capture is None:
            self._submitted.append(what)
        else:
            self.capture.launches.append(what)

    def position(self) -> int:
        return len(self._submitted)

    def run_to(self, position: int) -> None:
        self._cuda.check_responds()
        if self.capture is not None:
            self.capture.is_valid = False
            raise CudaError("operation not permitted when stream is capturing")
        for each in self._submitted[self._ended : position]:
            if isinstance(each, Event):
                each.synchronize()
        self._ended = max(self._ended, position)

    def synchronize(self) -> None:
        self.run_to(len(self._submitted))

    def wait_event(self, event: "Event") -> None:
        self._submitted.append(event)

    def wait_stream(self, other: "Stream") -> None:
        self.wait_event(Event(self._cuda).recorded(other))


class Event:
    """A place in a stream."""

    def __init__(self, cuda: "StandInCuda") -> None:
        self._cuda = cuda
        self._stream: Stream | None = None
        self._position = 0

    def recorded(self, stream: Stream) -> "Event":
        self._stream, self._position = stream, stream.position()
        return self

    def record(self, stream: Stream | None = None) -> None:
        self.recorded(stream or self._cuda.current_stream())

    def synchronize(self) -> None:
        if self._stream is not None:
            self._stream.run_to(self._position)


class StandInCuda:
    """Takes the place of `torch.cuda`'s functions until `patch` is undone."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.is_lost = False
        self._default = Stream(self)
        self._streams: dict[int, list[Stream]] = {}
        self._next_stream: dict[int, int] = {}
        self._current = threading.local()
        for name in _CLASSES:
            patch.setattr(torch.cuda, name, getattr(self, f"new_{name.lower()}"))
        for name in _FUNCTIONS:
            patch.setattr(torch.cuda, name, getattr(self, name))

    @property
    def running(self) -> list[str]:
        """The work that nobody has waited for."""
        return [what for stream in self._all() for what in stream.running]

    def launch(self, what: str) -> None:
        self.current_stream().submit(what)

    def check_responds(self) -> None:
        if self.is_lost:
            raise CudaError("an illegal memory access was encountered")

    def new_stream(self, device: object = None, priority: int = 0) -> Stream:
        streams = self._streams.setdefault(priority, [Stream(self) for _ in range(STREAMS)])
        count = self._next_stream.get(priority, 0)
        self._next_stream[priority] = count + 1
        return streams[count % STREAMS]

    def new_event(self) -> Event:
        return Event(self)

    def new_cudagraph(self) -> Graph:
        return Graph(self)

    def graph_pool_handle(self) -> tuple[int, int]:
        return 0, 1

    def current_stream(self, device: object = None) -> Stream:
        stream: Stream = getattr(self._current, "stream", self._default)
        return stream

    def default_stream(self, device: object = None) -> Stream:
        return self._default

    def set_stream(self, stream: Stream) -> None:
        self._current.stream = stream

    def set_device(self, device: object) -> None: ...

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before = self.current_stream()
        self.set_stream(stream)
        try:
            yield
        finally:
            self.set_stream(before)

    def synchronize(self, device: object = None) -> None:
        for stream in self._all():
            stream.synchronize()

    def empty_cache(self) -> None:
        if any(stream.capture for stream in self._all()):
            raise CudaError("captures_underway.empty() INTERNAL ASSERT FAILED")

    @contextmanager
    def graph(
        self, graph: Graph, pool: object, stream: Stream, capture_error_mode: str
    ) -> Iterator[None]:
        assert capture_error_mode == "thread_local", "others may not allocate meanwhile"
        self.synchronize()
        self.empty_cache()
        if stream is self._default:
            raise CudaError("CUDA graphs must be captured on a non-default stream")
        with self.stream(stream):
            stream.capture = graph
            try:
                yield
            finally:
                stream.capture = None
        if not graph.is_valid:
            raise CudaError("operation failed due to a previous error during capture")
        graph.is_complete = True

    def _all(self) -> list[Stream]:
        return [self._default, *(stream for pool in self._streams.values() for stream in pool)]
