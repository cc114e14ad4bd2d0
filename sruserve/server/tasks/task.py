"""What all tasks share: choose the model, read the inputs, bound what is in memory."""

import math
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any, ClassVar, Generic, TypeVar

from sruserve.server.budget import Hold
from sruserve.server.engine.job import Snapshot
from sruserve.server.errors import InputTooLong
from sruserve.server.offload import offload
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.repository.encoding import Tokens, read_part
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.inputs import INPUT_CHARACTERS, opens_long
from sruserve.server.tasks.limits import InputLimits
from sruserve.server.tasks.requests import Request

Body = TypeVar("Body", bound=Request)
T = TypeVar("T")

_TURN = 8 << 10  # characters and ids that are read in one turn on a thread: some milliseconds


class Task(Generic[Body]):
    """What can be asked of models of one task. Subclasses run a valid request.

    name: what the models' folders call the task.
    other_names: more tasks whose models it asks.
    schema: the fields of a request.
    """

    name: ClassVar[str]
    other_names: ClassVar[tuple[str, ...]] = ()
    schema: ClassVar[type[Request]]

    def __init__(self, catalogue: Catalogue, limits: InputLimits) -> None:
        self.catalogue, self.limits = catalogue, limits

    @property
    def models(self) -> list[str]:
        """The names of the models that it asks."""
        return self.catalogue.fitting(self.name, *self.other_names)

    def choose(self, request: Any) -> ServedModel:
        """The model that is to answer, or an error that says why there is none."""
        return self.catalogue.choose(request.model, self.name, *self.other_names)

    async def starts(
        self, caller: Caller, request: Request, served: ServedModel, count: int, cost: int
    ) -> list[Snapshot | None]:
        """`ServedModel.initial_states`, away from the event loop if its states are many or long."""
        if not opens_long(request.state):
            return served.initial_states(request, count)
        return await offload(True, served.initial_states, request, count, cost=cost, caller=caller)

    async def read_inputs(
        self,
        caller: Caller,
        served: ServedModel,
        inputs: Sequence[str | list[int]],
        starts: Sequence[Snapshot | None],
        field: str,
        work: Callable[[int, int, Tokens | None], Sequence[T]],
        *,
        more: bool = False,
        locate: bool = False,
    ) -> list[T]:
        """Read the inputs of a body, long or many ones on a thread, in turns with others' work.

        starts: what each input goes on from; a word that it left unfinished is read with the input.
        work: turns the inputs from a first one up to another into items; it is told the tokens of a
            long text, which is then the only one.
        more: the texts go on, so their last words are unfinished.
        locate: the places of tokens are asked for.

        Raises `Overloaded` before that if too much is being read, and `InputTooLong` if one word
        is to be read so often that all are longer than a body may be.
        """
        size, words = count_characters(inputs, starts)
        if size + words <= served.long_characters:
            return list(work(0, len(inputs), None))
        most = self.limits.body_bytes
        if words > most and len(inputs) > 1:
            raise InputTooLong(
                f"the unfinished words of the states have {words} characters, counted for each "
                f"input that continues one, over the limit of {most}: send fewer inputs, or ask "
                "the operator to raise SRUSERVE_MAX_BODY_BYTES"
            )
        caller.count_more(self.limits, words)
        found: list[T] = []
        for first, end, size in _turns(inputs, starts):
            known, given, start = None, inputs[first], starts[first]
            if isinstance(given, str) and len(given) > _TURN and served.model.codec is not None:
                word = start.word if start is not None else ""
                known = await _by_parts(caller, served, given, word, field, more, locate)
            cost = size if known is None else _TURN
            found += await offload(
                True, work, first, end, known, cost=cost, caller=caller, pool=served.pool
            )
        return found

    def reserve_reply(
        self, numbers: int, advice: str = "send chunks with `state`, or fewer inputs"
    ) -> Hold:
        """Hold room for a reply of about so many numbers, before they are made.

        Results are in memory until their client has taken them, however short its request was.
        Raises `InputTooLong` if one reply may not have so many, `Overloaded` if all may not.

        advice: what to change in a request that asks for too much.
        """
        most = self.limits.reply_numbers
        if numbers > most:
            raise InputTooLong(
                f"the reply would have {numbers} numbers, over the limit of {most}: {advice}, or "
                "ask the operator to raise SRUSERVE_MAX_BODY_BYTES"
            )
        return self.limits.count_reply(numbers)

    def deadline(self, request: Request) -> float:
        """When a job that has not begun is given up, on `time.monotonic()`; 0 is never."""
        seconds = self.limits.queue_seconds
        if request.timeout_ms is not None:
            seconds = min(seconds or math.inf, request.timeout_ms / 1000)
        return monotonic() + seconds if seconds else 0.0


def count_characters(
    inputs: Sequence[str | list[int]], starts: Sequence[Snapshot | None]
) -> tuple[int, int]:
    """The characters or ids of inputs, and those of the words that their starts left unfinished."""
    size = words = 0
    for each, start in zip(inputs, starts, strict=True):
        size += len(each) + INPUT_CHARACTERS
        if start is not None:
            words += len(start.word)
    return size, words


def _turns(
    inputs: Sequence[str | list[int]], starts: Sequence[Snapshot | None]
) -> Iterator[tuple[int, int, int]]:
    """Inputs in groups of about `_TURN`: the first of each, the end, its characters or ids.

    A longer input is alone.
    """
    first = size = 0
    for index, (each, start) in enumerate(zip(inputs, starts, strict=True)):
        if first < index and len(each) > _TURN:
            yield first, index, size
            first, size = index, 0
        size += len(each) + INPUT_CHARACTERS + (len(start.word) if start is not None else 0)
        if size >= _TURN or index + 1 == len(inputs):
            yield first, index + 1, size
            first, size = index + 1, 0


async def _by_parts(
    caller: Caller, served: ServedModel, text: str, word: str, field: str, more: bool, locate: bool
) -> Tokens | None:
    """The tokens of a long text, part by part, each in a turn; None: it has one part alone."""
    codec, pool = served.model.codec, served.pool
    assert codec is not None
    parts = await offload(True, codec.parts, text, _TURN, cost=_TURN, caller=caller)
    if len(parts) == 1:
        return None
    found = []
    for number, part in enumerate(parts, 1):
        given = codec, part, word, more and number == len(parts), field, locate
        cost, word = len(word) + len(part), ""
        found.append(await offload(True, read_part, *given, cost=cost, caller=caller, pool=pool))
    return await offload(True, Tokens.joined, parts, found, cost=_TURN, caller=caller)
