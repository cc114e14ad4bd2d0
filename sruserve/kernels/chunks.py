"""Long inputs on a GPU: one chunk's recurrence runs while the next chunk's product is computed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sruserve.kernels.layer import Layer
from sruserve.kernels.ragged import RaggedBatch
from sruserve.kernels.side_stream import SideStream, StreamEvent

# Numbers in a chunk's matrix product: about three waves of tiles on the largest GPUs; in 16 bits
# they fill half of the L2 cache.
_CHUNK_NUMBERS = 12 << 20
_ALIGNED = 2  # int64 numbers in 16 bytes, the alignment of the kernels' pointers


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch cut along time into chunks of about the same number of rows.

    order: (rows), int64, on the CPU: the packed row at each place; None keeps the order.
    chunks: (first place, end place, batch) of each chunk; the batch's tensors are on the device.
    """

    order: Tensor | None
    chunks: Sequence[tuple[int, int, RaggedBatch]]

    def places(self, rows: Tensor) -> Tensor:
        """Return the places of packed rows; both int64, on the CPU."""
        if self.order is None:
            return rows
        inverse = torch.empty_like(self.order)
        inverse[self.order] = torch.arange(len(self.order))
        return inverse[rows]


def chunk_rows(layers: Sequence[Layer]) -> int:
    """Return the number of rows that a chunk should have for a stack."""
    return max(1, _CHUNK_NUMBERS // max(layer.columns for layer in layers))


def plan(batch: RaggedBatch, rows: int, one_chunk: bool = False) -> Plan:
    """Cut a batch whose offsets, source and target are on the CPU.

    rows: approximate number of rows in a chunk.
    one_chunk: do not cut, for layers that run backward or over the whole input.

    Every chunk holds the same number of steps of each sequence, so that its recurrence is as wide
    as the batch's. A sequence that is cut needs a target row; without one the batch stays whole.
    """
    total, lengths = int(batch.offsets[-1]), batch.offsets.diff()
    count = 1 if one_chunk else max(1, total // rows)
    window = -(-int(lengths.max()) // count) if count > 1 else 0
    if count == 1 or bool(((lengths > window) & (batch.target < 0)).any()):
        tensors = _on_device([batch.offsets, batch.source, batch.target], batch.states.device)
        return Plan(None, [(0, total, _batch(tensors, batch.states, batch.offsets))])
    order: list[Tensor] = []
    parts: list[Tensor] = []
    edges = [0]
    for begin in range(0, int(lengths.max()), window):
        steps = (lengths - begin).clamp(0, window)
        # Empty sequences are in the first chunk, which carries their state over.
        taking_part = steps.nonzero()[:, 0] if begin else torch.arange(len(lengths))
        steps = steps[taking_part]
        offsets = torch.cat((torch.zeros(1, dtype=torch.int64), steps.cumsum(0)))
        from_row = batch.offsets[taking_part] + begin - offsets[:-1]
        order.append(torch.arange(int(offsets[-1])) + from_row.repeat_interleave(steps))
        start = batch.target if begin else batch.source
        parts += [offsets, start[taking_part], batch.target[taking_part]]
        edges.append(edges[-1] + int(offsets[-1]))
    tensors = _on_device(parts, batch.states.device)
    batches = [
        _batch(tensors[i : i + 3], batch.states, parts[i]) for i in range(0, len(tensors), 3)
    ]
    return Plan(torch.cat(order), list(zip(edges, edges[1:], batches, strict=False)))


def run_layers(
    layers: Sequence[Layer],
    inputs: Sequence[Tensor],
    batches: Sequence[RaggedBatch],
    side_stream: SideStream,
) -> list[Tensor]:
    """Run a stack over chunks of time; returns the last layer's outputs, one tensor per chunk.

    inputs: (rows of the chunk, in), one per chunk.
    side_stream: runs the recurrences of a layer one after another. A chunk's product waits only
        for the recurrence of the same chunk in the layer below.
    """
    if len(inputs) == 1:
        x = inputs[0]
        for layer in layers:
            x = layer(x, batches[0])
        return [x]
    events: list[StreamEvent | None] = [None] * len(inputs)
    try:
        return _run_chunks(layers, list(inputs), batches, side_stream, events)
    except BaseException:
        # Work in progress reads and writes memory and state rows that others get next.
        for event in events:
            if event is not None:
                side_stream.wait_event(event)
        raise


def _run_chunks(
    layers: Sequence[Layer],
    xs: list[Tensor],
    batches: Sequence[RaggedBatch],
    side_stream: SideStream,
    events: list[StreamEvent | None],
) -> list[Tensor]:
    below: Layer | None = None
    for layer in layers:
        for i, batch in enumerate(batches):
            if below is not None and (event := events[i]) is not None:
                side_stream.wait_event(event)
                xs[i] = below.finish(xs[i])
            x, u = xs[i], layer.project(xs[i], batch)
            # Allocate on the caller's stream: torch ties memory to the stream that allocates it.
            h = torch.empty(len(x), layer.width, dtype=x.dtype, device=x.device)
            events[i] = side_stream.run(_scan(layer, u, x, batch, h))
            xs[i] = h
        below = layer
    for i, event in enumerate(events):
        assert event is not None
        side_stream.wait_event(event)
        xs[i] = layers[-1].finish(xs[i])
    return xs


def _scan(
    layer: Layer, u: Tensor, x: Tensor, batch: RaggedBatch, h: Tensor
) -> Callable[[], object]:
    return lambda: layer.scan(u, x, batch, out=h)


def _batch(tensors: Sequence[Tensor], states: Tensor, host_offsets: Tensor) -> RaggedBatch:
    offsets, source, target = tensors
    return RaggedBatch(offsets, states, source, target, host_offsets)


def _on_device(parts: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy int64 vectors to the device in one transfer, each aligned to 16 bytes."""
    if device.type == "cpu":
        return list(parts)
    sizes = [len(part) for part in parts]
    padded = [-(-size // _ALIGNED) * _ALIGNED for size in sizes]
    packed = torch.zeros(sum(padded), dtype=torch.int64, pin_memory=True)
    for place, part in zip(torch.split(packed, padded), parts, strict=True):
        place[: len(part)] = part
    moved = torch.split(packed.to(device, non_blocking=True), padded)
    return [tensor[:size] for tensor, size in zip(moved, sizes, strict=True)]
