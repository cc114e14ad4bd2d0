"""Classify: label texts or features, or the next chunks of them, or pairs of texts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Classified
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.errors import InvalidRequest
from sruserve.server.repository.encoding import Ids, Tokens, encode_input
from sruserve.server.repository.served_model import ServedModel, with_states
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.inputs import split_inputs
from sruserve.server.tasks.per_input import Results, compute
from sruserve.server.tasks.reading import read_inputs
from sruserve.server.tasks.requests import ClassifyRequest, Input
from sruserve.server.tasks.sequences import SequenceReader
from sruserve.server.tasks.task import Task

_PAIR = "pair"
_INPUTS = SequenceReader()


class ClassifyTask(Task[ClassifyRequest, ServedModel]):
    """Classify texts.

    Label texts, features or pairs of texts, or the next chunk of a stream.
    """

    name, schema = "classify", ClassifyRequest
    route, prefix, streams = "classify", "cls", True
    other_names = (_PAIR,)

    def choose(self, request: ClassifyRequest) -> ServedModel:
        """A model of task `pair` for a request with a pair, else one of task `classify`."""
        if request.model is None:
            task = self.name if request.pair is None else _PAIR
            return with_states(self.catalogue.choose(None, task, state=request.state))
        return super().choose(request)

    async def run(
        self, caller: Caller, request: ClassifyRequest, served: ServedModel, cost: int
    ) -> Results:
        """Label the inputs of a request. cost: bytes of the request, for the queue.

        Raises `InvalidRequest` unless a request has a pair for a model that compares.
        """
        compares = served.model.config.task == _PAIR
        if compares and request.pair is None:
            raise InvalidRequest(
                f"{served.name} compares two inputs: send the second one as `pair`", param=_PAIR
            )
        if request.pair is not None and not compares:
            raise InvalidRequest(
                f"{served.name} reads one input at a time: leave out `pair`",
                param=_PAIR,
            )
        state_output, limits = served.state_output(request), self.limits
        if request.pair is None:
            kind = JobKind.CLASSIFY
            items = await _INPUTS.read(caller, request, served, limits, cost)
        else:
            kind = JobKind.COMPARE
            items = await self._read_pairs(caller, request, request.pair, served)
        return await compute(
            caller,
            request,
            served,
            limits,
            cost,
            kind,
            items,
            state_output=state_output,
            numbers=len(items) * served.model.config.label_numbers,
            raw_scores=request.raw_scores,
        )

    async def _read_pairs(
        self, caller: Caller, request: ClassifyRequest, pair: Input, served: ServedModel
    ) -> Sequence[SequenceInput]:
        if request.features is not None:
            raise InvalidRequest("'pair' goes with 'input'; leave out 'features'", param="features")
        if request.input is None:
            raise InvalidRequest(
                "'input' is missing: send one for each entry of 'pair'", param="input"
            )
        firsts = split_inputs(request.input, self.limits, "input")
        seconds = split_inputs(pair, self.limits, _PAIR)
        if len(firsts) != len(seconds):
            raise InvalidRequest(
                f"'input' has {len(firsts)} entries and 'pair' has {len(seconds)}; send the same "
                "number of both",
                param=_PAIR,
            )
        first = await self.read_ids(caller, served, firsts, "input")
        second = await self.read_ids(caller, served, seconds, _PAIR)
        pairs = zip(first, second, strict=True)
        return [SequenceInput(np.concatenate(pair), first=len(pair[0])) for pair in pairs]

    async def read_ids(
        self, caller: Caller, served: ServedModel, inputs: Sequence[str | list[int]], field: str
    ) -> list[Ids]:
        """The ids of whole inputs."""

        def read_slice(first: int, end: int, tokens: Tokens | None) -> list[Ids]:
            contents = inputs[first:end]
            return [
                encode_input(served, content, None, field, tokens=tokens)[0] for content in contents
            ]

        starts = [None] * len(inputs)
        return await read_inputs(caller, served, self.limits, inputs, starts, field, read_slice)

    def describe(
        self, served: ServedModel, item: SequenceInput, result: Classified
    ) -> dict[str, Any]:
        del item
        state = None if result.state is None else served.seal_state(result.state)
        if result.probabilities is None:
            return {"label": None, "score": None, "scores": None, "state": state}
        labels, scores = served.labels, result.probabilities.tolist()
        score = max(scores)
        return {
            "label": labels[scores.index(score)],
            "score": score,
            "scores": dict(zip(labels, scores, strict=True)),
            "state": state,
        }
