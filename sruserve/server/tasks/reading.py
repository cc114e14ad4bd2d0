"""Read the inputs of a request in bounded turns, and open the states before them."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from sruserve.model.text.codec import Codec
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import InputTooLong
from sruserve.server.offload import Offload, offload
from sruserve.server.repository.encoding import Tokens, read_part
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.repository.text_work import pool_for_part
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.inputs import INPUT_CHARACTERS, opens_long
from sruserve.server.tasks.limits import InputLimits
from sruserve.server.tasks.requests import Request

T = TypeVar("T")


async def initial_states(
    caller: Caller, request: Request, served: ServedModel, count: int, cost: int
) -> list[Snapshot | None]:
    """`ServedModel.initial_states`, off the event loop if there are many or long states."""
    if request.state is None or not opens_long(request.state):
        return served.initial_states(request, count)
    return await offload(True, served.initial_states, request, count, cost=cost, caller=caller)


async def read_inputs(
    caller: Caller,
    served: ServedModel,
    limits: InputLimits,
    inputs: Sequence[str | list[int]],
    starts: Sequence[Snapshot | None],
    field: str,
    work: Callable[[int, int, Tokens | None], Sequence[T]],
    *,
    more: bool = False,
    locate: bool = False,
) -> list[T]:
    """Read the inputs of a body; long or many inputs in turns with others, on a thread.

    starts: the state before each input; the text that it carries is read with the input.
    work: reads a slice of the inputs into items; the slice of a long text has this text alone,
        and `work` also gets its tokens.
    more: the texts continue, so their last words are unfinished.
    locate: also find the places of tokens.

    Raises `Overloaded` if too many bytes are being read, and `InputTooLong` if the repeated
    text of a state makes the inputs longer than the limit of a body.
    """
    size, carried = count_characters(inputs, starts)
    if size + carried <= served.long_characters:
        return list(work(0, len(inputs), None))
    limit = limits.body_bytes
    if carried > limit and len(inputs) > 1:
        raise InputTooLong(
            f"the unfinished words and open labels of the states have {carried} characters, "
            f"counted for each input that continues one, over the limit of {limit}: send fewer "
            "inputs, or ask the operator to raise SRUSERVE_MAX_BODY_BYTES"
        )
    caller.count_more(limits, carried)
    items, codec, pool = list[T](), served.model.codec, served.pool
    turn = limits.turn_characters
    for first, end, size in turns(inputs, [_carried(start) for start in starts], turn):
        tokens, content, start, own = None, inputs[first], starts[first], pool
        word = start.word if start is not None else ""
        if codec is not None and len(word) + len(content) > turn:
            if isinstance(content, str):
                arguments = codec, pool, content, word, field, more, locate
                tokens = await read_parts(caller, *arguments, turn)
            else:
                own = pool_for_part(pool, codec, word)  # ids end the word before them
        cost = size if tokens is None else turn
        items += await offload(True, work, first, end, tokens, cost=cost, caller=caller, pool=own)
    return items


def count_characters(
    inputs: Sequence[str | list[int]], starts: Sequence[Snapshot | None]
) -> tuple[int, int]:
    """The characters or ids of inputs, and the characters that the states before them carry."""
    is_text = bool(inputs) and isinstance(inputs[0], str)  # then all are
    size = sum(map(len if is_text else _size, inputs)) + INPUT_CHARACTERS * len(inputs)
    return size, carried_characters(starts) if any(starts) else 0


def carried_characters(starts: Sequence[Snapshot | None]) -> int:
    """The characters that states carry: of unfinished words, and of texts whose labels are open."""
    return sum(map(_carried, starts))


def _carried(start: Snapshot | None) -> int:
    return len(start.word) + len(start.held_back) if start is not None else 0


def _size(content: str | list[int] | list[str]) -> int:
    """The characters of a text, or of the words that it is split into, or the number of ids."""
    if isinstance(content, list) and content and isinstance(content[0], str):
        return len(content) + sum(map(len, content))
    return len(content)


def turns(
    inputs: Sequence[str | list[int]], carried: Sequence[int], turn: int
) -> Iterator[tuple[int, int, int]]:
    """Group inputs into slices of about `turn`: the first index, the end, the characters or ids.

    A longer input is a slice of its own. carried: the characters that the state before each has.
    """
    first = size = 0
    for index, (content, before) in enumerate(zip(inputs, carried, strict=True)):
        characters = _size(content) + before
        if first < index and characters > turn:
            yield first, index, size
            first, size = index, 0
        size += characters + INPUT_CHARACTERS
        if size >= turn or index + 1 == len(inputs):
            yield first, index + 1, size
            first, size = index + 1, 0


async def read_parts(
    caller: Caller,
    codec: Codec,
    pool: Offload,
    text: str,
    word: str,
    field: str,
    more: bool,
    locate: bool,
    turn: int,
    limit: int = sys.maxsize,
) -> Tokens | None:
    """The tokens of a long text, each part in a turn.

    turn: characters of a part.
    limit: the rest is not read once there are more tokens than these.
    word: the text that the state before it holds, which is read with the first part.

    None: the text has only one part, which may be read with others.
    """
    parts = await offload(True, codec.parts, text, turn, cost=turn, caller=caller) or [text]
    if len(parts) == 1 and pool_for_part(pool, codec, word + text) is pool:
        return None
    tokens, count = [], 0
    for number, part in enumerate(parts, 1):
        arguments = codec, part, word, more and number == len(parts), field, locate
        own = pool_for_part(pool, codec, word + part)
        cost, word = len(word) + len(part), ""
        read = await offload(True, read_part, *arguments, cost=cost, caller=caller, pool=own)
        tokens.append(read)
        count += len(read.ids)
        if count > limit:
            break
    return await offload(True, Tokens.joined, parts, tokens, cost=turn, caller=caller)
