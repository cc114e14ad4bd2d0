"""Sample the tokens of a step's sequences. However many there are, memory stays bounded."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from sruserve.model.runtime import Runtime
from sruserve.server.engine.graph_decoder import GraphDecoder
from sruserve.server.engine.output_reader import OutputReader, StepResult
from sruserve.server.engine.sampling.logits_processors import (
    GrammarWaitBudget,
    LogitsProcessor,
    Pick,
)
from sruserve.server.engine.sampling.sampler import Sampler
from sruserve.server.engine.sampling.uniforms import uniforms
from sruserve.server.engine.state_cache.pool import indices


class StepSampler:
    """Samples the next tokens of sequences, in every step of a burst.

    Sampling holds several numbers for each score, so it takes a block of sequences at a time.

    graph_decoder: picks tokens with its kernel, if there is one.
    late: some text's position is not known yet, so the burst must end.
    """

    def __init__(
        self,
        step_results: Sequence[StepResult],
        burst: int,
        network: Runtime,
        output_reader: OutputReader,
        graph_decoder: GraphDecoder | None,
        wait_budget: GrammarWaitBudget,
    ) -> None:
        self._step_results = step_results
        self._network, self._output_reader = network, output_reader
        self._graph_decoder, self._wait_budget = graph_decoder, wait_budget
        blocks = output_reader.blocks(len(step_results))
        alone = len(blocks) == 1 and len({r.sequence.job for r in step_results}) == 1
        self._blocks: list[tuple[slice, Pick, dict[int, list[int]]]] = []
        for block in blocks:
            own = step_results[block]
            self._blocks.append((block, self._picker(own, burst, alone), _by_logprobs(own)))
        self.late = False

    def __call__(self, hidden: Tensor, step: int) -> Tensor:
        """Return the tokens (sequences), int64, that follow `hidden` (sequences, width)."""
        parts = []
        for block, pick, with_logprobs in self._blocks:
            logits = self._network.logits(hidden[block])
            tokens = pick(logits, step)
            parts.append(tokens)
            for top, rows in with_logprobs.items():
                at = indices(rows, logits.device)
                chosen, own = logits.index_select(0, at), tokens.index_select(0, at)
                logprobs = self._output_reader.logprobs(chosen, own, top)
                for row, entry in zip(rows, logprobs, strict=True):
                    self._step_results[block.start + row].logprobs.append(entry)
            if isinstance(pick, LogitsProcessor) and pick.late:
                self.late = True
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _picker(self, step_results: Sequence[StepResult], burst: int, alone: bool) -> Pick:
        sequences = [r.sequence for r in step_results]
        positions = [r.sequence.steps + r.consumed for r in step_results]
        sampling = [sequence.job.sampling for sequence in sequences]
        pick: Pick
        if self._graph_decoder is not None:  # one kernel for all, so no token depends on the batch
            pick = partial(self._graph_decoder.pick, sequences, positions)
        else:
            windows = [
                s.window if s.job.sampling.repetition_penalty != 1 else () for s in sequences
            ]
            numbers = uniforms(
                [s.seed for s in sequences], [s.choice for s in sequences], positions, burst
            )
            pick = Sampler(sampling, windows, numbers, self._network.device)
        if not any(s.adjusts for s in sampling):
            return pick
        outputs = self._output_reader.outputs
        return LogitsProcessor(pick, sequences, outputs, self._wait_budget, alone)


def _by_logprobs(step_results: Sequence[StepResult]) -> dict[int, list[int]]:
    """The rows whose jobs report log-probabilities, by how many."""
    rows: dict[int, list[int]] = {}
    for row, result in enumerate(step_results):
        if (top := result.sequence.job.sampling.logprobs) is not None:
            rows.setdefault(top, []).append(row)
    return rows
