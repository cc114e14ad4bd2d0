"""Tag: label each step of texts, ids or features, and merge the labels into spans."""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from sruserve.model.text.frames import ENDED
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.job import SequenceInput, Snapshot, Tagged
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.errors import CannotStream
from sruserve.server.repository.encoding import Ids, Tokens, encode_input, locate_input
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.limits import NUMBER_BYTES, text_numbers
from sruserve.server.tasks.per_input import Results, compute
from sruserve.server.tasks.reading import initial_states
from sruserve.server.tasks.requests import TagRequest
from sruserve.server.tasks.sequences import SequenceReader
from sruserve.server.tasks.spans import Scheme
from sruserve.server.tasks.task import Resources, Task
from sruserve.server.tasks.texts import TextReader

_NUMBERS = 8  # the numbers that take as many bytes as a token's entry


@dataclass(slots=True, kw_only=True)
class Steps(SequenceInput):
    """Features, or ids.

    carried: the number of steps before this request's own: those whose labels a CRF has left open,
        and the ids of the previous chunk's unfinished word.
    """

    carried: int = 0

    def token(self, step: int) -> dict[str, Any]:
        """The place of a step in a reply."""
        return {"index": step - self.carried}

    def place(self, first: int, end: int) -> dict[str, Any]:
        """The place of the steps from `first` to `end` in a reply."""
        return {"start": first - self.carried, "end": end - self.carried}


@dataclass(slots=True, kw_only=True)
class Text(Steps):
    """A text. The first `carried` characters are of earlier chunks.

    They are of the steps whose labels a CRF has left open, and of the unfinished word.

    places: (steps, 2), int64: the begin and end of each id, also of open ones; those of earlier
        chunks are before 0.
    """

    text: str
    places: Ids

    def token(self, step: int) -> dict[str, Any]:
        return self.place(step, step + 1)

    def tail(self, steps: int) -> tuple[str, tuple[int, ...]]:
        if not steps:
            return "", ()
        places = self.places[-steps:] + self.carried
        first = int(places[:, 0].min())
        text = self.text[first : len(self.text) - len(self.word)]
        return text, tuple((places - first).ravel().tolist())

    def place(self, first: int, end: int) -> dict[str, Any]:
        start, stop = int(self.places[first, 0]), int(self.places[end - 1, 1])
        text = self.text[self.carried + start : self.carried + stop]
        return {"text": text, "start": start, "end": stop}


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
        items = await _INPUTS.read(caller, request, served, self.limits, cost)
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


async def _open_states(
    caller: Caller, request: TagRequest, served: ServedModel, count: int, cost: int
) -> list[Snapshot | None]:
    """The states before inputs; raises `CannotStream` for one whose labels are final."""
    starts = await initial_states(caller, request, served, count, cost)
    if served.model.network.crf is not None:
        for start in starts:
            if start is not None and start.word == ENDED:
                raise CannotStream(
                    f"the labels of this state's input are final, because {served.name}'s CRF "
                    'has scored the last one: send chunks with "more": true, apart from the '
                    "last one",
                    param=request.begun_by,
                )
    return starts


def _text_item(
    request: TagRequest,
    served: ServedModel,
    content: str | list[int],
    start: Snapshot | None,
    tokens: Tokens | None,
) -> SequenceInput:
    if not isinstance(content, str):
        ids, _ = encode_input(served, content, start, "input")
        carried = len(ids) - len(content) + _open_steps(served, start)
        return Steps(ids, start, more=request.more, carried=carried)
    ids, places, word = locate_input(served, content, start, "input", request.more, tokens)
    text = (start.word if start is not None else "") + content
    if start is not None and (steps := _open_steps(served, start)):
        before = np.zeros((steps, 2), np.int64)  # no text, for steps of ids
        if start.window:
            before += np.array(start.window).reshape(-1, 2)
        text = start.held_back + text
        places = np.concatenate([before - (len(text) - len(content)), places])
    carried = len(text) - len(content)
    return Text(ids, start, word, request.more, text=text, carried=carried, places=places)


def _features_item(
    request: TagRequest,
    served: ServedModel,
    features: NDArray[np.float32],
    start: Snapshot | None,
) -> SequenceInput:
    return Steps(features, start, more=request.more, carried=_open_steps(served, start))


_INPUTS = SequenceReader(
    TextReader(_text_item, _open_states, locates=True, needs_only_ids=False), _features_item
)


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


def _open_steps(served: ServedModel, start: Snapshot | None) -> int:
    """The number of steps of a state whose labels the model's CRF has left open."""
    crf = served.model.network.crf
    return 0 if crf is None or start is None else crf.open_steps(start.probabilities)
