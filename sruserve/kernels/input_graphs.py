"""Whole inputs as captured graphs: batches are padded to a few numbers of rows and sequences."""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sruserve.kernels.devices import needs_pinned
from sruserve.kernels.graphs import GraphBackend, Replay
from sruserve.kernels.ragged import RaggedBatch

log = logging.getLogger("sruserve.kernels")

MIN_ROWS = 32
MAX_GRAPHS = 16  # at a time
MAX_CAPTURES = 64  # in all: each holds up the GPU, so changing inputs must not capture for ever
USES_BEFORE_CAPTURE = 3
_ALIGNED = 2  # int64 numbers in 16 bytes, the alignment of the kernels' pointers

Key = tuple[int, int, int, torch.Size]  # rows, sequences, and the states that the graph reads


def captures_inputs(device: torch.device) -> bool:
    """Whether whole inputs run as graphs: they save launches, which the CPU does not have."""
    return device.type == "cuda"


class InputGraphs:
    """Runs batches of whole inputs, those of frequent sizes as one graph each.

    run: computes outputs (rows, width) from inputs (rows, …) and a batch, all on the device. It
        must not wait for the device, nor compute from anything on the host; the outputs of a row
        must not depend on the number of rows and sequences, nor on rows past the last offset.
    device: that of the graphs' memory.
    max_rows: of all graphs together, to which their memory is proportional.
    max_graphs: at a time. max_captures: in all.

    The graph that was used longest ago makes room for a new one. A capture that fails is the last
    one: its batch has been computed by then, and all others run without a graph.
    """

    def __init__(
        self,
        run: Callable[[Tensor, RaggedBatch], Tensor],
        device: torch.device,
        max_rows: int,
        recorder: GraphBackend,
        *,
        max_graphs: int = MAX_GRAPHS,
        max_captures: int = MAX_CAPTURES,
    ) -> None:
        self._run, self._device, self._recorder = run, device, recorder
        self._max_rows, self._captures_left = max_rows, max_captures
        self._max_graphs = max_graphs
        self._buckets: OrderedDict[Key, _Bucket] = OrderedDict()  # the last used one at the end
        self._uses: Counter[Key] = Counter()

    def run(self, inputs: Tensor, batch: RaggedBatch) -> Tensor | None:
        """Run a batch as a graph; None if it has none, and the caller has to run it.

        All of the batch but its states is on the CPU. So are the inputs: others have no graph.

        Returns outputs (rows, width) in memory of the graph, which the next call overwrites.
        Raises the errors of `run`.
        """
        if not (inputs.is_cpu and len(inputs)) or row_bucket(len(inputs)) > self._max_rows:
            return None
        sizes = row_bucket(len(inputs)), sequence_bucket(batch.sequences)
        key = (*sizes, batch.states.data_ptr(), batch.states.shape)
        bucket = self._buckets.get(key)
        if bucket is not None:
            self._buckets.move_to_end(key)
            bucket.load(inputs, batch, self._recorder)
            bucket.replay()
        elif self._is_frequent(key):
            bucket = self._captured(key, inputs, batch)
        return None if bucket is None else bucket.outputs[: len(inputs)]

    def _is_frequent(self, key: Key) -> bool:
        if not self._captures_left:
            return False
        if len(self._uses) > 16 * self._max_graphs:
            self._uses.clear()
        self._uses[key] += 1
        return self._uses[key] > USES_BEFORE_CAPTURE

    def _captured(self, key: Key, inputs: Tensor, batch: RaggedBatch) -> "_Bucket":
        """Run a batch exactly once, and capture its bucket."""
        self._make_room(key[0])
        bucket = _Bucket.of(key[0], key[1], inputs, batch.states, self._device)
        bucket.load(inputs, batch, self._recorder)
        has_run = False

        def work() -> None:
            nonlocal has_run
            outputs = self._run(bucket.inputs, bucket.batch)
            if not has_run:
                bucket.outputs = torch.empty_like(outputs)
            bucket.outputs.copy_(outputs)
            has_run = True

        try:
            bucket.replay = self._recorder.record(work)
            if not has_run:  # `Eager` records nothing
                bucket.replay()
        except Exception:
            if not has_run:
                raise
            log.warning("a graph of whole inputs cannot be captured: no more are", exc_info=True)
            self._captures_left = 0
            return bucket
        self._captures_left -= 1
        del self._uses[key]
        self._buckets[key] = bucket
        return bucket

    def _make_room(self, rows: int) -> None:
        """Drop graphs until one of so many rows fits; waits for those that may still run."""
        while self._buckets and (
            len(self._buckets) >= self._max_graphs
            or sum(key[0] for key in self._buckets) + rows > self._max_rows
        ):
            self._recorder.mark()()
            self._buckets.popitem(last=False)


@dataclass(slots=True, eq=False)
class _Bucket:
    """Memory at addresses that never change, for so many rows and sequences, and its graph."""

    inputs: Tensor
    batch: RaggedBatch
    outputs: Tensor
    replay: Replay
    _layout: Tensor
    _sizes: tuple[int, int, int]

    @classmethod
    def of(
        cls, rows: int, sequences: int, inputs: Tensor, states: Tensor, device: torch.device
    ) -> "_Bucket":
        memory = torch.zeros(rows, *inputs.shape[1:], dtype=inputs.dtype, device=device)
        lengths = sequences + 1, sequences, sequences
        padded = [-(-length // _ALIGNED) * _ALIGNED for length in lengths]
        layout = torch.zeros(sum(padded), dtype=torch.int64, device=device)
        offsets, source, target = (
            part[:length] for part, length in zip(torch.split(layout, padded), lengths, strict=True)
        )
        batch = RaggedBatch(offsets, states, source, target)
        return cls(
            memory, batch, memory[:0], lambda: None, layout, (padded[0], padded[1], padded[2])
        )

    def load(self, inputs: Tensor, batch: RaggedBatch, recorder: GraphBackend) -> None:
        """Copy a batch. The other sequences are empty, and read and write no state.

        The other rows keep what they had: no sequence has them.
        """
        pinned = needs_pinned(self._layout.device)
        layout = torch.full(self._layout.shape, -1, dtype=torch.int64, pin_memory=pinned)
        offsets, source, target = torch.split(layout, list(self._sizes))
        offsets.fill_(len(inputs))
        offsets[: len(batch.offsets)] = batch.offsets
        source[: batch.sequences] = batch.source
        target[: batch.sequences] = batch.target
        recorder.copy(self._layout, layout)
        recorder.copy(self.inputs[: len(inputs)], inputs.pin_memory() if pinned else inputs)


def row_bucket(rows: int) -> int:
    """Return the number of rows that a batch is padded to: a power of 2, or 3/4 of one."""
    power = 1 << (rows - 1).bit_length()
    return max(MIN_ROWS, power * 3 // 4 if rows <= power * 3 // 4 else power)


def sequence_bucket(sequences: int) -> int:
    """Return the number of sequences: a power of 4, because empty ones cost hardly anything."""
    return int(4 ** -(-(sequences - 1).bit_length() // 2))
