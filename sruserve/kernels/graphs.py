"""Bursts (multi-step decoding): each batch size is captured once as CUDA graphs, then replayed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sruserve.kernels.captures import capture
from sruserve.kernels.devices import CPU
from sruserve.kernels.slots import DecodeInputs, Slots

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
LENGTHS = (16, 4, 1)  # steps of a graph, longest first; a burst is a sequence of graphs
MAX_STEPS = 64  # in a burst, a few milliseconds: `Slots` has memory for that many

Replay = Callable[[], object]


class GraphBackend(Protocol):
    """Records work once, so that it can be repeated on the same memory."""

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
    """Captures CUDA graphs on one device; they share one pool for their intermediate tensors."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._ended: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def record(self, work: Callable[[], None]) -> Replay:
        work()  # compiles the kernels, which a capture must not do
        return capture(work, self._device, self._pool).replay

    def finish(self) -> None:
        self._ended.record()
        self._ended.synchronize()


@dataclass(frozen=True, slots=True)
class _Bucket:
    slots: Slots
    replays: dict[int, Replay]


class GraphedDecode:
    """Runs a decode step for any number of streams, several times in a row.

    step: one step over `slots`. It reads the tokens and the source rows, writes the target rows,
        the next tokens and the picked tokens (see `Slots`), allocates nothing that has to outlive
        it, and never waits for the device.
    max_streams, max_steps: limits of one burst, up to which graphs are captured; more than
        `MAX_STEPS` steps count as `MAX_STEPS`.
    """

    def __init__(
        self,
        step: Callable[[Slots], None],
        device: torch.device,
        max_streams: int,
        max_steps: int,
        recorder: GraphBackend | None = None,
    ) -> None:
        if recorder is None:
            recorder = GraphRecorder(device) if device.type == "cuda" else Eager()
        self._recorder = recorder
        self._sizes = _sizes(max_streams)
        self.max_steps = min(max_steps, MAX_STEPS)
        self._lengths = [n for n in LENGTHS if n <= max_steps]
        self._buckets: dict[int, _Bucket] = {}
        # Largest first: the smaller graphs then fit into the memory of the larger ones.
        for size in reversed(self._sizes):
            slots, replays = Slots(size, self.max_steps, device), {}
            for length in self._lengths:
                slots.reset()  # recording runs the steps, too
                replays[length] = recorder.record(_burst(step, slots, length))
            self._buckets[size] = _Bucket(slots, replays)

    def run(self, streams: DecodeInputs, steps: int) -> Tensor:
        """Decode `steps` tokens of every stream; returns them, (steps, streams) int64, on the CPU.

        Reads the states from the source rows and writes them to the target rows. More streams than
        the largest bucket holds run in several parts. Waits for the device once, at the end.

        Raises ValueError if `steps` is not 1 to `max_steps`.
        """
        if not 1 <= steps <= self.max_steps:
            raise ValueError(f"a burst must have 1 to {self.max_steps} steps, not {steps}")
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
            if i == 0:  # later steps read the states that the first step wrote
                slots.source.copy_(slots.target)

    return run


def _graphs(steps: int, lengths: Sequence[int]) -> list[int]:
    """Return the fewest graph lengths that add up to `steps`."""
    graphs = []
    for length in lengths:
        graphs += [length] * (steps // length)
        steps %= length
    return graphs


def _sizes(max_streams: int) -> list[int]:
    """Return the buckets that serve up to `max_streams` streams at a time."""
    smaller = [size for size in BUCKETS if size < max_streams]
    larger = [size for size in BUCKETS if size >= max_streams]
    return [*smaller, *larger[:1]]
