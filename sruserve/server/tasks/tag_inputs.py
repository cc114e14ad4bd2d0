"""The inputs of a tagger, with the steps and the characters that their states left open."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sruserve.model.text.frames import ENDED
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import CannotStream
from sruserve.server.repository.encoding import Ids, Tokens, encode_input, locate_input
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.reading import initial_states
from sruserve.server.tasks.requests import TagRequest
from sruserve.server.tasks.sequences import SequenceReader
from sruserve.server.tasks.texts import TextReader


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


def _open_steps(served: ServedModel, start: Snapshot | None) -> int:
    """The number of steps of a state whose labels the model's CRF has left open."""
    crf = served.model.network.crf
    return 0 if crf is None or start is None else crf.open_steps(start.probabilities)


INPUTS = SequenceReader(
    TextReader(_text_item, _open_states, locates=True, needs_only_ids=False), _features_item
)
