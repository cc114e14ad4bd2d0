"""Read the texts of a request, or their next chunks, as the items of a job."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sruserve.server.engine.sequence_input import PackedInputs, SequenceInput
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.errors import InvalidRequest
from sruserve.server.repository.encoding import Tokens, encode_input, encode_texts
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.inputs import split_inputs
from sruserve.server.tasks.limits import InputLimits
from sruserve.server.tasks.reading import count_characters, initial_states, read_inputs
from sruserve.server.tasks.requests import ChunkRequest

Text = str | list[int]
Start = Snapshot | None
TextItem = Callable[[Any, ServedModel, Text, Start, Tokens | None], SequenceInput]
OpenStates = Callable[[Caller, Any, ServedModel, int, int], Awaitable[list[Start]]]


def text_item(
    request: ChunkRequest, served: ServedModel, content: Text, start: Start, tokens: Tokens | None
) -> SequenceInput:
    """The ids of a text or a list of ids. tokens: of a long text, if they are read already."""
    ids, word = encode_input(served, content, start, "input", request.more, tokens)
    return SequenceInput(ids, start, word, request.more)


@dataclass(frozen=True, slots=True)
class TextReader:
    """Reads one item for each text or list of ids.

    item: makes an item of a text and the state before it.
    open_states: opens the states before the texts.
    locates: the items have the places of the tokens in a text.
    needs_only_ids: the item of a text that begins and ends here has its ids, and nothing else.
    """

    item: TextItem = text_item
    open_states: OpenStates = initial_states
    locates: bool = False
    needs_only_ids: bool = True

    async def read(
        self,
        caller: Caller,
        request: ChunkRequest,
        served: ServedModel,
        limits: InputLimits,
        cost: int,
    ) -> Sequence[SequenceInput]:
        """The texts of a request with their states. cost: bytes of the request, for turns."""
        if request.input is None:
            raise InvalidRequest("'input' is missing: send a text", param="input")
        inputs = split_inputs(request.input, limits, "input", served.chunks_or_parts)
        starts = await self.open_states(caller, request, served, len(inputs), cost)
        if sum(count_characters(inputs, starts)) <= served.long_characters:
            whole = not request.more and not any(starts)
            if whole and len(inputs) > 1 and self.needs_only_ids:
                ids = encode_texts(served, inputs)
                if ids is not None:
                    return PackedInputs(ids)
            items = []
            for content, start in zip(inputs, starts, strict=True):
                items.append(self.item(request, served, content, start, None))
            return items

        def read_slice(first: int, end: int, tokens: Tokens | None) -> list[SequenceInput]:
            pairs = zip(inputs[first:end], starts[first:end], strict=True)
            return [self.item(request, served, content, start, tokens) for content, start in pairs]

        return await read_inputs(
            caller,
            served,
            limits,
            inputs,
            starts,
            "input",
            read_slice,
            more=request.more,
            locate=self.locates,
        )
