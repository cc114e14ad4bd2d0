"""Tag: label each step of texts, ids or features, and merge the labels into spans."""

from typing import Any
from weakref import WeakKeyDictionary

from sruserve.server.engine.engine import Engine
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Tagged
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.limits import NUMBER_BYTES, text_numbers
from sruserve.server.tasks.per_input import Results, compute
from sruserve.server.tasks.requests import TagRequest
from sruserve.server.tasks.spans import Scheme
from sruserve.server.tasks.tag_inputs import INPUTS, Steps, Text
from sruserve.server.tasks.task import Resources, Task

_NUMBERS = 8  # the numbers that take as many bytes as a token's entry


class TagTask(Task[TagRequest, ServedModel]):
    """Label every step.

    Label each token of texts, or each step of ids or features, and merge the labels into spans.

    A span that continues one of the chunk before is `continued`. A model with a CRF returns the
    labels of a stream when no later step can change them; `pending` counts the others.
    """

    name, schema = "tag", TagRequest
    route, prefix, streams = "tag", "tag", True

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        self._schemes: WeakKeyDictionary[Engine, Scheme] = WeakKeyDictionary()

    async def run(
        self, caller: Caller, request: TagRequest, served: ServedModel, cost: int
    ) -> Results:
        """Label the steps of a request's inputs. cost: bytes of the request, for the queue."""
        state_output = served.state_output(request)
        items = await INPUTS.read(caller, request, served, self.limits, cost)
        return await compute(
            caller,
            request,
            served,
            self.limits,
            cost,
            JobKind.TAG,
            items,
            state_output=state_output,
            numbers=sum(_numbers(served, item) for item in items),
        )

    def _scheme(self, served: ServedModel) -> Scheme:
        """The cached scheme of a model's labels; reading very many labels takes milliseconds."""
        scheme = self._schemes.get(served.engine)
        if scheme is None:
            scheme = self._schemes[served.engine] = Scheme(served.labels)
        return scheme

    def describe(self, served: ServedModel, item: Steps, result: Tagged) -> dict[str, Any]:
        names, scores = served.labels, result.scores.tolist()
        labels: list[int] = result.labels.tolist()
        pending = {} if result.pending is None else {"pending": result.pending}
        return {
            "tokens": [
                {**item.token(step), "label": names[label], "score": score}
                for step, (label, score) in enumerate(zip(labels, scores, strict=True))
            ],
            "spans": [
                {
                    "label": span.label,
                    **item.place(span.first, span.end),
                    "score": span.score,
                    "continued": span.continued,
                }
                for span in self._scheme(served).spans(labels, scores, result.before)
            ],
            **pending,
            "state": served.seal_state(result.state),
        }


def _numbers(served: ServedModel, item: SequenceInput) -> int:
    """The approximate count of numbers in the result of one item."""
    crf, steps = served.model.network.crf, len(item.inputs)
    # A label and a text are in the entry of a token, and in that of a span.
    each = _NUMBERS + 2 * served.model.config.longest_label_numbers
    texts = 2 * text_numbers(item.text) if isinstance(item, Text) else 0
    if crf is not None:
        # While the labels of all steps are open, each keeps five bytes for every label.
        each += 5 * crf.labels // NUMBER_BYTES
        if item.start is not None:
            steps += crf.open_steps(item.start.probabilities)
            texts += text_numbers(item.start.held_back)
    return each * steps + texts
