"""Bursts (multi-step decoding): each batch size is captured once as CUDA graphs, then replayed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sruserve.kernels.captures import capture
from sruserve.kernels.devices import CPU
from sruserve.kernels.slots import DecodeInputs, Slots, copy_in_order

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
LENGTHS = (16, 4, 1)  # steps of a graph, longest first; a burst is a sequence of graphs
MAX_STEPS = 64  # in a burst, a few milliseconds: `Slots` has memory for that many

Replay = Callable[[], object]
Wait = Callable[[], object]


class GraphBackend(Protocol):
    """Records work once, so that it can be repeated on the same memory."""

    def record(self, work: Callable[[], None]) -> Replay: ...

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy between the device and the host's memory, in the order of the replays."""
        ...

    def mark(self) -> Wait:
        """Return what waits until all replays and copies so far have ended."""
        ...


class Eager:
    """No graph: a replay is the work itself."""

    def __init__(self, device: torch.device = CPU) -> None:
        self._device = device

    def record(self, work: Callable[[], None]) -> Replay:
        return work

    def copy(self, target: Tensor, source: Tensor) -> None:
        copy_in_order(target, source)

    def mark(self) -> Wait:
        return _mark(self._device)


class GraphRecorder:
    """Captures CUDA graphs on one device; they share one pool for their intermediate tensors."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], None]) -> Replay:
        work()  # compiles the kernels, which a capture must not do
        return capture(work, self._device, self._pool).replay

    def copy(self, target: Tensor, source: Tensor) -> None:
        copy_in_order(target, source)

    def mark(self) -> Wait:
        return _mark(self._device)


def recorder_for(device: torch.device) -> GraphBackend:
    """Return what records work on a device."""
    return GraphRecorder(device) if device.type == "cuda" else Eager()


def _mark(device: torch.device) -> Wait:
    if device.type != "cuda":
        return lambda: None
    event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event.synchronize


@dataclass(frozen=True, slots=True)
class RunningBurst:
    """A burst that was launched.

    wait: waits for its end.
    """

    _picked: Tensor
    wait: Wait
    _count: int

    def tokens(self) -> Tensor:
        """Wait for the burst; returns its tokens, (steps, streams) int64, on the CPU.

        The first tokens of a stream are its own, as many as its limit; the others mean nothing.
        Not after the burst after the next one was launched, which has the same memory.
        """
        self.wait()
        return self._picked[:, : self._count]


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

    A burst may be launched while the one before it runs: the streams' tokens are then those that it
    picks. But no third one: the host has memory for two.
    """

    def __init__(
        self,
        step: Callable[[Slots], None],
        device: torch.device,
        max_streams: int,
        max_steps: int,
        recorder: GraphBackend | None = None,
    ) -> None:
        self._recorder = recorder or recorder_for(device)
        self._sizes = _sizes(max_streams)
        self.max_steps = min(max_steps, MAX_STEPS)
        self._lengths = [n for n in LENGTHS if n <= max_steps]
        self._buckets: dict[int, _Bucket] = {}
        # Largest first: the smaller graphs then fit into the memory of the larger ones.
        for size in reversed(self._sizes):
            slots, replays = Slots(size, self.max_steps, device, self._recorder.copy), {}
            for length in self._lengths:
                slots.reset()  # recording runs the steps, too
                replays[length] = self._recorder.record(_burst(step, slots, length))
            self._buckets[size] = _Bucket(slots, replays)
        self._loaded = self._buckets[self._sizes[0]]

    def bucket(self, streams: int) -> int:
        """The number of slots that a burst of so many streams computes."""
        return next(size for size in self._sizes if size >= streams)

    def load(self, streams: DecodeInputs) -> None:
        """Choose the streams of the next bursts. No burst may be running.

        The fields of `DecodeInputs` that belong to a burst are not used. At most as many streams as
        the largest bucket has slots.
        """
        self._loaded = self._buckets[self.bucket(len(streams))]
        self._loaded.slots.load(streams)

    def launch(self, source: Tensor, target: Tensor, limits: Tensor, steps: int) -> RunningBurst:
        """Decode the next tokens of the streams that are loaded, in their order.

        source, target, limits: see `DecodeInputs`. steps: of the burst, 1 to `max_steps`.

        Raises ValueError for another number of steps.
        """
        if not 1 <= steps <= self.max_steps:
            raise ValueError(f"a burst must have 1 to {self.max_steps} steps, not {steps}")
        slots = self._loaded.slots
        slots.begin(source, target, limits)
        for length in _graphs(steps, self._lengths):
            self._loaded.replays[length]()
        return RunningBurst(slots.fetch(steps), self._recorder.mark(), len(source))

    def run(self, streams: DecodeInputs, steps: int) -> Tensor:
        """Decode a burst of `steps` steps; returns the tokens, (steps, streams) int64, on the CPU.

        Reads the states from the source rows and writes them to the target rows. More streams than
        the largest bucket holds run in several parts. Waits for the device.

        Raises ValueError if `steps` is not 1 to `max_steps`.
        """
        tokens = []
        for part in streams.split(self._sizes[-1]):
            self.load(part)
            tokens.append(
                self.launch(part.source, part.target, part.limits, steps).tokens().clone()
            )
        return torch.cat(tokens, dim=1)


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
    sizes = [*smaller, *BUCKETS[len(smaller) :][:1]]
    while sizes[-1] < max_streams:
        sizes.append(2 * sizes[-1])
    return sizes
