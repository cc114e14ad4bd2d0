"""Ask a language model for the frequencies of the next id: of whole blocks, and step by step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from sruserve.compression.errors import UnfitModelError
from sruserve.compression.frequencies import Integers, Scores, cumulative_frequencies
from sruserve.kernels import RaggedBatch, single
from sruserve.model.exactness import is_exact
from sruserve.model.folder import Model

Interval = tuple[int, int, int]  # arguments of `RangeEncoder.encode`

PASS_STEPS = 4096  # of a block that are read in one pass
_SCORES = 1 << 20  # whose frequencies are computed at a time: about 40 MB
_STATE_BYTES = 256 << 20  # of all lanes
MAX_LANES = 64


class Predictor:
    """A language model as what foresees the ids of a block.

    A block begins from the zero state, with the ids that the tokenizer puts before a text. Without
    any, nothing is known of its first id.

    Raises `UnfitModelError` for a model that generates no text, cannot stream, or whose results
    depend on how an input is split.

    max_lanes: blocks side by side. pass_steps: of a block that are read in one pass.
    """

    def __init__(
        self, model: Model, *, max_lanes: int = MAX_LANES, pass_steps: int = PASS_STEPS
    ) -> None:
        self._pass_steps = pass_steps
        network = model.network
        if model.config.task != "generate" or model.config.vocab_size is None:
            raise UnfitModelError(
                f"{model.name} has the task {model.config.task}: a language model compresses, one "
                "with the task generate"
            )
        if not network.supports_streaming:
            raise UnfitModelError(
                f"{model.name} cannot decompress step by step, because it "
                f"{network.not_streamable_because}: use a model that streams"
            )
        if not is_exact(network.exactness):
            raise UnfitModelError(
                f"{model.name} computes {network.exactness}: a file needs the same bits in any "
                "split"
            )
        self._network, self.ids = network, model.config.vocab_size
        frame = None if model.codec is None else model.codec.frame
        prefix = np.zeros(0, np.int64) if frame is None else frame.prefix
        self._prefix = torch.from_numpy(np.array(prefix, np.int64))
        self.lanes = max(1, min(max_lanes, _STATE_BYTES // max(1, network.state_bytes)))
        self.lanes = max(1, min(self.lanes, 8 * _SCORES // self.ids))

    def read(self, ids: Integers) -> "BlockReading":
        """Read the ids of a block, (steps), int64, in passes of thousands of steps."""
        return BlockReading(self, ids)

    def predictions(self, ids: Integers) -> Iterator[Scores]:
        """Yield the scores of each of a block's ids, (some ids, all ids), some at a time."""
        known = torch.cat((self._prefix, torch.from_numpy(ids)))[:-1]
        if not len(self._prefix) and len(ids):
            yield self._unknown(1)
        states = self.zero_states(1)
        skipped = max(0, len(self._prefix) - 1)  # steps that foresee the prefix
        for first in range(0, len(known), self._pass_steps):
            inputs = known[first : first + self._pass_steps]
            hidden = self._network.hidden(inputs, single(states, len(inputs)))
            yield from self._scores(hidden[max(0, skipped - first) :])

    def begin(self, lanes: int) -> "Lanes":
        """Return `lanes` blocks at their beginning."""
        return Lanes(self, lanes)

    def first(self, states: Tensor) -> Scores:
        """Read the prefix into each row of `states`; returns each one's scores, (rows, ids)."""
        lanes, length = len(states), len(self._prefix)
        if not length:
            return self._unknown(lanes)
        return self.advance(states, range(lanes), self._prefix.repeat(lanes), length)

    def advance(self, states: Tensor, rows: Sequence[int], ids: Tensor, steps: int = 1) -> Scores:
        """Read `steps` ids into each of some rows of `states`; returns the scores of the next ones.

        ids: (rows * steps), int64. Returns (rows, all ids), float32.
        """
        own = torch.tensor(rows)
        offsets = torch.arange(len(rows) + 1) * steps
        hidden = self._network.hidden(ids, RaggedBatch(offsets, states, own, own), offsets[1:] - 1)
        return np.concatenate(list(self._scores(hidden)))

    def zero_states(self, lanes: int) -> Tensor:
        """Return the state rows of blocks that begin."""
        return self._network.layout.allocate(lanes, self._network.device)

    def _scores(self, hidden: Tensor) -> Iterator[Scores]:
        """Yield the scores of outputs (rows, width), some rows at a time, on the host."""
        for part in torch.split(hidden, max(1, _SCORES // self.ids)):
            yield np.ascontiguousarray(self._network.logits(part).cpu().numpy())

    def _unknown(self, rows: int) -> Scores:
        """Return equal scores of all ids."""
        return np.zeros((rows, self.ids), np.float32)


class BlockReading(Iterator[Interval]):
    """For each id of a block: the frequencies before it, its own, and all together.

    checksum: CRC-32 of the scores of all ids so far, and of those read ahead.
    """

    def __init__(self, predictor: Predictor, ids: Integers) -> None:
        self.checksum = 0
        self._ids, self._predictions = ids, predictor.predictions(ids)
        self._ahead: Iterator[Interval] = iter(())

    def __next__(self) -> Interval:
        interval = next(self._ahead, None)
        if interval is not None:
            return interval
        self._ahead = self._read(next(self._predictions))
        return next(self._ahead)

    def _read(self, scores: Scores) -> Iterator[Interval]:
        self.checksum = crc32(scores.data, self.checksum)
        own, self._ids = self._ids[: len(scores)], self._ids[len(scores) :]
        cumulative, rows = cumulative_frequencies(scores), np.arange(len(own))
        low, end, total = cumulative[rows, own], cumulative[rows, own + 1], cumulative[:, -1]
        return zip(low.tolist(), (end - low).tolist(), total.tolist(), strict=True)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is known of an id: scores, (ids), float32, and frequencies, (ids + 1), of all ids."""

    scores: Scores
    frequencies: Integers


class Lanes:
    """Blocks that are read side by side, a step of each at a time.

    predictions: of each lane's next id.
    """

    def __init__(self, predictor: Predictor, lanes: int) -> None:
        self._predictor, self._states = predictor, predictor.zero_states(lanes)
        self.predictions = _predictions(predictor.first(self._states))

    def advance(self, ids: dict[int, int]) -> None:
        """Read one id into each of some lanes. ids: by lane."""
        inputs = torch.tensor(list(ids.values()))
        scores = self._predictor.advance(self._states, list(ids), inputs)
        for lane, prediction in zip(ids, _predictions(scores), strict=True):
            self.predictions[lane] = prediction


def _predictions(scores: Scores) -> list[Prediction]:
    rows = zip(scores, cumulative_frequencies(scores), strict=True)
    return [Prediction(*row) for row in rows]
