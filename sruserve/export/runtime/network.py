"""A network that ONNX Runtime computes, over the same state rows as the compiled kernels."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from sruserve.export.onnx.signature import answer_of
from sruserve.export.runtime.session import GraphSession
from sruserve.kernels import RaggedBatch
from sruserve.kernels.decode import Decoder
from sruserve.kernels.devices import copy_to_device
from sruserve.model.config import ModelConfig
from sruserve.model.errors import CaseError
from sruserve.model.heads.crf import LinearChain
from sruserve.model.heads.softmaxes import MAX_NUMBERS, activation, over_words
from sruserve.model.runtime import Streamable

_ROWS = 4096  # of a padded batch
MAX_STEP_NUMBERS = 16 * MAX_NUMBERS  # of the answers of one step of the engine
_EXACTNESS = "1e-5: the runtime's products may depend on the number of rows"
_EXACTNESS_OF_INTEGERS = (
    "to the rounding of int8: products are exact, but the runtime's other operators may depend on "
    "the number of rows"
)


class OnnxNetwork(Streamable):
    """See `Runtime`. The graph's answer stands for both `hidden` and `logits`.

    sequence: the graph of whole sequences. step: that of one step, if there is one.
    weights: number of the weights' numbers. crf: that of a tagger.
    max_step_numbers: of the answers of one step of the engine, which are in memory together.
    """

    def __init__(
        self,
        config: ModelConfig,
        sequence: GraphSession,
        step: GraphSession | None,
        weights: int,
        crf: LinearChain | None,
        version: str,
        max_step_numbers: int = MAX_STEP_NUMBERS,
    ) -> None:
        self.config, self.layout = config, config.layout
        self.dtype, self.device = torch.float32, sequence.device
        self.weights, self.piece_rows, self.crf = weights, 1024, crf
        self.supports_streaming = config.not_streamable_because is None
        self.activation: Callable[[Tensor], Tensor] = activation(config.activation)
        self.kernel = f"ONNX Runtime {version}, {sequence.provider}"
        self.exactness = _EXACTNESS if config.weights is None else _EXACTNESS_OF_INTEGERS
        self._sequence, self._step = sequence, step
        self._answer = answer_of(config)
        self._input = "features" if config.vocab_size is None else "ids"
        self._width = config.rnn.output_size if config.outputs is None else config.outputs
        # The scores of all words at all rows of a step are in memory at the same time.
        self.max_step_rows: int | None = max(1, max_step_numbers // self._width)

    @property
    def pooled_width(self) -> int | None:
        """Width of the outputs; None for a graph with a head, which answers with scores alone."""
        return self._width if self.config.outputs is None else None

    def hidden(
        self, inputs: Tensor, batch: RaggedBatch, output_rows: Tensor | None = None
    ) -> Tensor:
        """Run the graph; returns its answers at `output_rows`, (output rows, outputs).

        See `Network.hidden`. For task pair, whose graph compares inputs, returns the inputs.
        """
        rows = torch.arange(len(inputs)) if output_rows is None else output_rows
        if self.config.task == "pair":
            return inputs.index_select(0, rows)
        answers = torch.full((len(rows), self._width), torch.nan, device=self.device)
        if not batch.sequences:
            return answers
        place = torch.full((len(inputs),), -1)
        place[rows] = torch.arange(len(rows))
        lengths = batch.offsets.diff()
        decodes = self._step is not None and bool((lengths == 1).all())
        for chosen in [torch.arange(batch.sequences)] if decodes else _alike(lengths):
            states = self._read(batch, chosen)
            begins, counts = batch.offsets[:-1][chosen], lengths[chosen]
            for start, size in self._pieces(counts, begins, place):
                states = self._piece(
                    inputs, begins + start, (counts - start).clamp(0, size), states, place, answers
                )
            self._write(batch, chosen, states)
        return answers

    def outputs_of_layers(self, inputs: Tensor, batch: RaggedBatch) -> list[Tensor]:
        """Refuse: a graph has no outputs of layers. Raises `CaseError`."""
        del inputs, batch
        raise CaseError(
            "an ONNX file gives no outputs of layers: compare logits, probabilities, values or "
            "end states, or verify the model folder"
        )

    def logits(self, hidden: Tensor) -> Tensor:
        """Return what `hidden` returned: the head is in the graph."""
        return hidden

    def log_probs(self, scores: Tensor) -> Tensor:
        """See `Network.log_probs`."""
        if self.config.head.adaptive or self.config.head.experts:
            return scores
        return over_words(torch.log_softmax, scores)

    def compare(self, hidden: Tensor, lengths: Sequence[int]) -> Tensor:
        """See `Network.compare`; `hidden` are the inputs of all steps."""
        parts = torch.split(hidden, list(lengths))
        results = []
        for a, b in zip(parts[::2], parts[1::2], strict=True):
            graph_inputs = {
                f"{name}{end}": copy_to_device(value, self.device)
                for end, side in (("_a", a), ("_b", b))
                for name, value in (
                    (self._input, side[None]),
                    ("lengths", torch.tensor([len(side)])),
                )
            }
            results.append(self._sequence.run(graph_inputs, {"batch": 1})[self._answer])
        return torch.cat(results)

    def decoder(self, states: Tensor) -> Decoder | None:
        """Return None: ONNX Runtime has its own kernels."""
        del states
        return None

    def warm_up(self, before: Callable[[int], None] = lambda _: None) -> None:
        """Run some sizes once, so that the runtime has allocated its memory."""
        for rows in (1, 16):
            before(rows)
            shape = (rows,) if self._input == "ids" else (rows, self.config.width)
            inputs = torch.zeros(shape, dtype=torch.int64 if self._input == "ids" else None)
            if self.config.task == "pair":
                self.compare(inputs.repeat_interleave(2, 0), [rows, rows])
                continue
            states, first = self.layout.allocate(1, self.device), torch.zeros(1, dtype=torch.int64)
            batch = RaggedBatch(torch.tensor([0, rows]), states, first, first)
            self.hidden(inputs, batch, torch.tensor([rows - 1]))

    def _pieces(self, counts: Tensor, begins: Tensor, place: Tensor) -> Iterator[tuple[int, int]]:
        """Cut the time of some sequences: yields the first step and the number of steps."""
        longest = int(counts.max())
        size = max(1, longest)
        if self.config.answers_by_step:
            size = max(1, MAX_NUMBERS // (self._width * len(counts)))
        elif (place[_all_but_last(begins, counts)] >= 0).any():
            if not self.supports_streaming:
                raise CaseError(
                    "the graph answers at the end of an input only: compare its last answer, or "
                    "verify the model folder"
                )
            size = 1
        if not self.supports_streaming:
            size = max(1, longest)
        for start in range(0, longest, size):
            yield start, min(size, longest - start)

    def _piece(
        self,
        inputs: Tensor,
        begins: Tensor,
        counts: Tensor,
        states: Tensor,
        place: Tensor,
        answers: Tensor,
    ) -> Tensor:
        """Run `counts` steps of each sequence from row `begins` on; returns the new states.

        Writes the answers of rows that have a `place` among `answers`.
        """
        steps = int(counts.max())
        rows = begins[:, None] + torch.arange(steps)
        inside = torch.arange(steps) < counts[:, None]
        x = inputs[rows.where(inside, 0)]
        x[~inside] = 0  # not another sequence's inputs, which may be infinite
        sizes = {"batch": len(begins), "time": steps}
        graph_inputs = {"state": states}
        if self._step is not None and bool((counts == 1).all()):
            graph_inputs[self._input] = copy_to_device(x[:, 0], self.device)
            results = self._step.run(graph_inputs, sizes)
            answer = results[self._answer].unsqueeze(1)
        else:
            graph_inputs[self._input] = copy_to_device(x, self.device)
            graph_inputs["lengths"] = copy_to_device(counts, self.device)
            results = self._sequence.run(graph_inputs, sizes)
            answer = results[self._answer]
        if not self.config.answers_by_step:  # one answer, at the last step
            rows, inside = (begins + counts - 1)[:, None], (counts > 0)[:, None]
            answer = answer if answer.dim() == 3 else answer.unsqueeze(1)
        places = place[rows.where(inside, 0)].where(inside, -1)
        known = places >= 0
        target = copy_to_device(places[known], self.device)
        answers[target] = answer[copy_to_device(known, self.device)]
        return results["new_state"]

    def _read(self, batch: RaggedBatch, chosen: Tensor) -> Tensor:
        """Return the start states of some sequences, (sequences, width)."""
        source = copy_to_device(batch.source[chosen], self.device)
        states = batch.states.index_select(0, source.clamp(min=0))
        return states.masked_fill_((source < 0).unsqueeze(1), 0.0)

    def _write(self, batch: RaggedBatch, chosen: Tensor, states: Tensor) -> None:
        """Write the end states of some sequences where the batch wants them."""
        target = batch.target[chosen]
        has_target = target >= 0
        rows = states[copy_to_device(has_target, self.device)]
        batch.states[copy_to_device(target[has_target], self.device)] = rows


def _all_but_last(begins: Tensor, counts: Tensor) -> Tensor:
    """Return the rows of sequences without the last one of each."""
    steps = torch.arange(int(counts.max()))
    return (begins[:, None] + steps)[steps < counts[:, None] - 1]


def _alike(lengths: Tensor) -> Iterator[Tensor]:
    """Group sequences of similar lengths, so that padding is at most as much as they are."""
    order = lengths.argsort(descending=True, stable=True)
    ordered = lengths[order].tolist()
    begin = 0
    for end in range(1, len(ordered) + 1):
        longest = ordered[begin]
        full = (end - begin + 1) * longest > _ROWS
        if end == len(ordered) or full or 2 * ordered[end] <= longest:
            yield order[begin:end]
            begin = end
