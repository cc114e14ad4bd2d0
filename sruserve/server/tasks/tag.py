"""Tag: a label for each step of texts, ids or features, and the spans that they mark."""

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

_NUMBERS = 8  # a token's entry is about as long as so many numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps(SequenceInput):
    """Features, or ids behind the `held` ones of a word that the last chunk left unfinished."""

    held: int = 0

    def token(self, step: int) -> dict[str, Any]:
        """Where a reply says that a step lies."""
        return {"index": step - self.held}

    def stretch(self, first: int, end: int) -> dict[str, Any]:
        """Where a reply says that the steps from `first` to `end` lie."""
        return {"start": first - self.held, "end": end - self.held}


@dataclass(frozen=True, slots=True, kw_only=True)
class Text(Steps):
    """A text, behind the `held` characters of the word that the last chunk left unfinished.

    places: (steps, 2), int64: where each id begins and ends; before 0 lies the unfinished word.
    """

    text: str
    places: Ids

    def token(self, step: int) -> dict[str, Any]:
        return self.stretch(step, step + 1)

    def stretch(self, first: int, end: int) -> dict[str, Any]:
        start, stop = int(self.places[first, 0]), int(self.places[end - 1, 1])
        text = self.text[self.held + start : self.held + stop]
        return {"text": text, "start": start, "end": stop}


class TagTask(SequenceTask[TagRequest]):
    """The label of each step with its score, and spans."""

    name, schema = "tag", TagRequest
    features_item, locates = Steps, True

    def __init__(self, catalogue: Catalogue, limits: InputLimits) -> None:
        super().__init__(catalogue, limits)
        self._schemes: WeakKeyDictionary[Engine, Scheme] = WeakKeyDictionary()

    def kind(self, request: TagRequest) -> JobKind:
        del request
        return JobKind.TAG

    def numbers(self, served: ServedModel, item: SequenceInput) -> int:
        del served
        return _NUMBERS * len(item.inputs)

    def text_item(
        self,
        request: TagRequest,
        served: ServedModel,
        given: str | list[int],
        start: Snapshot | None,
        known: Tokens | None,
    ) -> SequenceInput:
        if not isinstance(given, str):
            ids, _ = encode_input(served, given, start, "input")
            return Steps(ids, start, more=request.more, held=len(ids) - len(given))
        ids, places, word = locate_input(served, given, start, "input", request.more, known)
        text = (start.word if start is not None else "") + given
        held = len(text) - len(given)
        return Text(ids, start, word, request.more, text=text, held=held, places=places)

    def _scheme(self, served: ServedModel) -> Scheme:
        """The scheme of a model's labels, which takes milliseconds to read where they are many."""
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
                    **item.stretch(span.first, span.end),
                    "score": span.score,
                    "continued": span.continued,
                }
                for span in self._scheme(served).spans(labels, scores, result.before)
            ],
            "state": served.seal_state(result.state),
        }
