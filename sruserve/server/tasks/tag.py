"""Tag: label each step of texts, ids or features, and merge the labels into spans."""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from sruserve.server.engine.engine import Engine
from sruserve.server.engine.job import JobKind, SequenceInput, Snapshot, Tagged
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.repository.encoding import Ids, Tokens, encode_input, locate_input
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.limits import InputLimits
from sruserve.server.tasks.requests import TagRequest
from sruserve.server.tasks.sequences import SequenceTask
from sruserve.server.tasks.spans import Scheme

_NUMBERS = 8  # the numbers that take as many bytes as a token's entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps(SequenceInput):
    """Features, or ids. The first `carried` ids are of the previous chunk's unfinished word."""

    carried: int = 0

    def token(self, step: int) -> dict[str, Any]:
        """The place of a step in a reply."""
        return {"index": step - self.carried}

    def place(self, first: int, end: int) -> dict[str, Any]:
        """The place of the steps from `first` to `end` in a reply."""
        return {"start": first - self.carried, "end": end - self.carried}


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(Steps):
    """A text. The first `carried` characters are of the previous chunk's unfinished word.

    places: (steps, 2), int64: the begin and end of each id; the unfinished word is before 0.
    """

    text: str
    places: Ids

    def token(self, step: int) -> dict[str, Any]:
        return self.place(step, step + 1)

    def place(self, first: int, end: int) -> dict[str, Any]:
        start, stop = int(self.places[first, 0]), int(self.places[end - 1, 1])
        text = self.text[self.carried + start : self.carried + stop]
        return {"text": text, "start": start, "end": stop}


class TagTask(SequenceTask[TagRequest]):
    """The label of each step with its score, and spans."""

    name, schema = "tag", TagRequest
    features_item, locates = Steps, True

    def __init__(self, catalogue: Catalogue, limits: InputLimits) -> None:
        super().__init__(catalogue, limits)
        self._schemes: WeakKeyDictionary[Engine, Scheme] = WeakKeyDictionary()

    def kind(self, request: TagRequest, served: ServedModel) -> JobKind:
        del request, served
        return JobKind.TAG

    def numbers(self, request: TagRequest, served: ServedModel, item: SequenceInput) -> int:
        del request, served
        return _NUMBERS * len(item.inputs)

    def text_item(
        self,
        request: TagRequest,
        served: ServedModel,
        content: str | list[int],
        start: Snapshot | None,
        tokens: Tokens | None,
    ) -> SequenceInput:
        if not isinstance(content, str):
            ids, _ = encode_input(served, content, start, "input")
            return Steps(ids, start, more=request.more, carried=len(ids) - len(content))
        ids, places, word = locate_input(served, content, start, "input", request.more, tokens)
        text = (start.word if start is not None else "") + content
        carried = len(text) - len(content)
        return Text(ids, start, word, request.more, text=text, carried=carried, places=places)

    def _scheme(self, served: ServedModel) -> Scheme:
        """The cached scheme of a model's labels; reading very many labels takes milliseconds."""
        scheme = self._schemes.get(served.engine)
        if scheme is None:
            scheme = self._schemes[served.engine] = Scheme(served.labels)
        return scheme

    def describe(self, served: ServedModel, item: Steps, result: Tagged) -> dict[str, Any]:
        names, scores = served.labels, result.scores.tolist()
        labels: list[int] = result.labels.tolist()
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
            "state": served.seal_state(result.state),
        }
