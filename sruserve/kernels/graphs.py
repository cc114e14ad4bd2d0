"""Bursts of one-step decode: sizes in buckets, each captured once as a CUDA graph and replayed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sruserve.kernels.devices import CPU
from sruserve.kernels.slots import Slots, Streams

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
LENGTHS = (16, 4, 1)  # steps of a graph, longest first; a burst is a row of graphs
MOST_STEPS = 64  # of a burst: a few milliseconds, and what its slots have memory for

Replay = Callable[[], object]


class Recorder(Protocol):
    """Turns work into something that does the same work again, on the same memory."""

    def record(self, work: Callable[[], None]) -> Replay: ...

    def finish(self) -> None:
        """Wait until all replays have ended."""
        ...


class Eager:
    """No graph: a replay is the work itself."""

    def __init__(self, device: torch.device = CPU) -> None:
        self._device = device

    def record(self, work: Callable[[], None]) -> Replay:
        return work

    def finish(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


class GraphRecorder:
    """CUDA graphs of one device, which share the memory of what they hold between two launches."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        # torch's own is one for the whole process, on whatever device came first.
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._ended: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def record(self, work: Callable[[], None]) -> Replay:
        graph = torch.cuda.CUDAGraph()
        work()  # compiles what is not compiled yet; a capture may not
        torch.cuda.synchronize(self._device)
        # thread_local: other models' engines go on allocating while this one captures.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            work()
        return graph.replay

    def finish(self) -> None:
        self._ended.record()
        self._ended.synchronize()


@dataclass(frozen=True, slots=True)
class _Bucket:
    slots: Slots
    replays: dict[int, Replay]


class Bursts:
    """Runs a decode step for any number of streams, several times in a row.

    step: one step over `slots`: reads the tokens and the source rows, writes the target rows, and
        puts the next tokens and the picked ones in place (see `Slots`). It allocates nothing that
        has to outlive it, and never waits for the device.
    most_streams, most_steps: of one burst, the steps at most `MOST_STEPS`; graphs are captured up
        to these.
    """

    def __init__(
        self,
        step: Callable[[Slots], None],
        device: torch.device,
        most_streams: int,
        most_steps: int,
        recorder: Recorder | None = None,
    ) -> None:
        if recorder is None:
            recorder = GraphRecorder(device) if device.type == "cuda" else Eager()
        self._recorder = recorder
        self._sizes = _sizes(most_streams)
        self.most_steps = min(most_steps, MOST_STEPS)
        self._lengths = [n for n in LENGTHS if n <= most_steps]
        self._buckets: dict[int, _Bucket] = {}
        # Largest first: the smaller graphs fit into the memory that the larger ones have taken.
        for size in reversed(self._sizes):
            slots, replays = Slots(size, self.most_steps, device), {}
            for length in self._lengths:
                slots.reset()  # recording runs the steps, too
                replays[length] = recorder.record(_burst(step, slots, length))
            self._buckets[size] = _Bucket(slots, replays)

    def run(self, streams: Streams, steps: int) -> Tensor:
        """Decode `steps` tokens of every stream; returns them, (steps, streams) int64, on the CPU.

        The states of the streams go from their source rows to their target rows; more streams than
        the largest bucket go in turns. The device is waited for once, at the end.
        """
        if not 1 <= steps <= self.most_steps:
            raise ValueError(f"a burst has 1 to {self.most_steps} steps, not {steps}")
        largest = self._sizes[-1]
        if len(streams) > largest:
            return torch.cat([self.run(part, steps) for part in streams.split(largest)], dim=1)
        bucket = self._buckets[next(size for size in self._sizes if size >= len(streams))]
        bucket.slots.load(streams)
        for length in _graphs(steps, self._lengths):
            bucket.replays[length]()
        bucket.slots.fetch(steps)
        self._recorder.finish()
        return bucket.slots.picked(steps, len(streams))


def _burst(step: Callable[[Slots], None], slots: Slots, count: int) -> Callable[[], None]:
    def run() -> None:
        for i in range(count):
            step(slots)
            if i == 0:  # what was read from the source rows goes on in the target rows
                slots.source.copy_(slots.target)

    return run


def _graphs(steps: int, lengths: Sequence[int]) -> list[int]:
    """The fewest graphs that make `steps` steps."""
    found = []
    for length in lengths:
        found += [length] * (steps // length)
        steps %= length
    return found


def _sizes(most: int) -> list[int]:
    """The buckets that serve up to `most` streams at a time."""
    smaller = [size for size in BUCKETS if size < most]
    larger = [size for size in BUCKETS if size >= most]
    return [*smaller, *larger[:1]]
