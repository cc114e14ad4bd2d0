"""CUDA streams and graph captures that several models of one process use at the same time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE

_lock = Lock()  # torch allows one capture in the process at a time
_capture_streams: dict[torch.device, torch.cuda.Stream] = {}


@contextmanager
def no_capture() -> Iterator[None]:
    """Let no capture be underway: for calls on the whole device, which would invalidate it."""
    with _lock:
        yield


def new_stream(device: torch.device, priority: int = 0) -> torch.cuda.Stream:
    """Create a CUDA stream that is never the one of captures.

    torch hands out 32 streams in turns, so a process with many models has some of them twice:
    that costs overlap. But what a stream gets during a capture would become a part of the graph.

    priority: 0, or negative for a higher one.
    """
    with _lock:
        reserved = _capture_stream(device)
        while (stream := _stream(device, priority)) == reserved:
            pass
        return stream


def capture(
    work: Callable[[], object], device: torch.device, pool: "_POOL_HANDLE"
) -> torch.cuda.CUDAGraph:
    """Record the launches of `work` as a graph, which keeps its tensors in the memory pool `pool`.

    Waits for the captures of other threads, and for all work on the device. Other models' engines
    keep launching and allocating.
    """
    graph = torch.cuda.CUDAGraph()
    with _lock:
        stream = _capture_stream(device)
        # Entering it synchronizes the device, which another thread's capture would not survive.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            work()
    return graph


def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    if device not in _capture_streams:
        _capture_streams[device] = _stream(device, 0)
    return _capture_streams[device]


def _stream(device: torch.device, priority: int) -> torch.cuda.Stream:
    stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]
    return stream
