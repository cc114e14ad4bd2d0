"""Long inputs on a GPU: the recurrence of one stretch of time beside the product of the next."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from sruserve.kernels.layer import Layer
from sruserve.kernels.ragged import RaggedBatch

# Numbers in a chunk's product: some three waves of tiles over the largest GPUs, and in 16 bits half
# of their L2 cache.
_CHUNK_NUMBERS = 12 << 20
_ALIGNED = 2  # int64 numbers in 16 bytes, which the kernels' pointers are multiples of


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch cut along time into chunks of about as many rows each.

    order: (rows), int64, on the CPU: the packed row that stands in each place; None where the
        order stays as it is.
    chunks: (first place, end place, batch) of each chunk, the batch's tensors on the device.
    """

    order: Tensor | None
    chunks: Sequence[tuple[int, int, RaggedBatch]]

    def places(self, rows: Tensor) -> Tensor:
        """Where packed rows (int64, on the CPU) have gone."""
        if self.order is None:
            return rows
        inverse = torch.empty_like(self.order)
        inverse[self.order] = torch.arange(len(self.order))
        return inverse[rows]


def chunk_rows(layers: Sequence[Layer]) -> int:
    """How many rows a chunk should have for a stack."""
    return max(1, _CHUNK_NUMBERS // max(layer.columns for layer in layers))


def plan(batch: RaggedBatch, rows: int, whole: bool = False) -> Plan:
    """Cut a batch whose offsets, source and target are on the CPU.

    rows: about how many a chunk gets. whole: do not cut (a layer that runs backwards, too).

    Every sequence takes part in each chunk with as many steps as the others, so that a chunk's
    recurrence is as wide as the batch's. Sequences that are cut need a target row.
    """
    total, lengths = int(batch.offsets[-1]), batch.offsets.diff()
    count = 1 if whole else max(1, total // rows)
    window = -(-int(lengths.max()) // count) if count > 1 else 0
    if count == 1 or bool(((lengths > window) & (batch.target < 0)).any()):
        tensors = _on_device([batch.offsets, batch.source, batch.target], batch.states.device)
        return Plan(None, [(0, total, _batch(tensors, batch.states))])
    order: list[Tensor] = []
    parts: list[Tensor] = []
    edges = [0]
    for begin in range(0, int(lengths.max()), window):
        here = (lengths - begin).clamp(0, window)
        # Empty sequences are in the first chunk, which carries their state over.
        taking_part = here.nonzero()[:, 0] if begin else torch.arange(len(lengths))
        here = here[taking_part]
        offsets = torch.cat((torch.zeros(1, dtype=torch.int64), here.cumsum(0)))
        from_row = batch.offsets[taking_part] + begin - offsets[:-1]
        order.append(torch.arange(int(offsets[-1])) + from_row.repeat_interleave(here))
        start = batch.target if begin else batch.source
        parts += [offsets, start[taking_part], batch.target[taking_part]]
        edges.append(edges[-1] + int(offsets[-1]))
    tensors = _on_device(parts, batch.states.device)
    batches = [_batch(tensors[i : i + 3], batch.states) for i in range(0, len(tensors), 3)]
    return Plan(torch.cat(order), list(zip(edges, edges[1:], batches, strict=False)))


class Beside(Protocol):
    """Where recurrences run: beside the caller's own work, in the order in which they came."""

    def run(self, work: Callable[[], object]) -> object:
        """Start `work` after all that the caller has started; returns a ticket that keeps it."""
        ...

    def wait(self, ticket: object) -> None:
        """What the caller starts from now on comes after the ticket's work."""
        ...


class Inline:
    """No other lane: work is done at once."""

    def run(self, work: Callable[[], object]) -> object:
        return work()

    def wait(self, ticket: object) -> None:
        pass


class SideStream:
    """A second CUDA stream, whose small programs go before the product's large ones."""

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    def run(self, work: Callable[[], object]) -> object:
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            work()
        # The tensors that `work` holds must not be given to others before its end is waited for.
        return self._stream.record_event(), work

    def wait(self, ticket: object) -> None:
        assert isinstance(ticket, tuple)
        torch.cuda.current_stream(self._stream.device).wait_event(ticket[0])


def run_layers(
    layers: Sequence[Layer],
    inputs: Sequence[Tensor],
    batches: Sequence[RaggedBatch],
    lane: Beside,
) -> list[Tensor]:
    """Run a stack over chunks of time, and return the last layer's outputs, chunk by chunk.

    inputs: (rows of the chunk, in) each. The recurrences of a layer run one after another on
    `lane`, and the product of a chunk waits only for the recurrence below it.
    """
    if len(inputs) == 1:
        x = inputs[0]
        for layer in layers:
            x = layer(x, batches[0])
        return [x]
    tickets: list[object] = [None] * len(inputs)
    try:
        return _run_chunks(layers, list(inputs), batches, lane, tickets)
    except BaseException:
        # What is still running reads and writes memory, and state rows, that others get next.
        for ticket in tickets:
            if ticket is not None:
                lane.wait(ticket)
        raise


def _run_chunks(
    layers: Sequence[Layer],
    xs: list[Tensor],
    batches: Sequence[RaggedBatch],
    lane: Beside,
    tickets: list[object],
) -> list[Tensor]:
    below: Layer | None = None
    for layer in layers:
        for i, batch in enumerate(batches):
            if below is not None:
                lane.wait(tickets[i])
                xs[i] = below.finish(xs[i])
            x, u = xs[i], layer.project(xs[i], batch)
            # Allocated here: memory belongs to the stream that is current when it is taken.
            h = torch.empty(len(x), layer.width, dtype=x.dtype, device=x.device)
            tickets[i] = lane.run(_scan(layer, u, x, batch, h))
            xs[i] = h
        below = layer
    for i, ticket in enumerate(tickets):
        lane.wait(ticket)
        xs[i] = layers[-1].finish(xs[i])
    return xs


def _scan(
    layer: Layer, u: Tensor, x: Tensor, batch: RaggedBatch, h: Tensor
) -> Callable[[], object]:
    return lambda: layer.scan(u, x, batch, out=h)


def _batch(tensors: Sequence[Tensor], states: Tensor) -> RaggedBatch:
    offsets, source, target = tensors
    return RaggedBatch(offsets, states, source, target)


def _on_device(parts: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Move int64 vectors in one copy, each to a multiple of 16 bytes."""
    if device.type == "cpu":
        return list(parts)
    sizes = [len(part) for part in parts]
    padded = [-(-size // _ALIGNED) * _ALIGNED for size in sizes]
    packed = torch.zeros(sum(padded), dtype=torch.int64, pin_memory=True)
    for place, part in zip(torch.split(packed, padded), parts, strict=True):
        place[: len(part)] = part
    moved = torch.split(packed.to(device, non_blocking=True), padded)
    return [tensor[:size] for tensor, size in zip(moved, sizes, strict=True)]
