"""The base of tasks with a result for each text, or for its next chunk."""

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from sruserve.server.engine.job import PackedInputs, SequenceInput, Snapshot
from sruserve.server.errors import InvalidRequest
from sruserve.server.repository.encoding import Tokens, encode_input, encode_texts
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.inputs import split_inputs
from sruserve.server.tasks.per_input import PerInputTask
from sruserve.server.tasks.requests import ChunkRequest
from sruserve.server.tasks.task import count_characters

Chunk = TypeVar("Chunk", bound=ChunkRequest)


class PerTextTask(PerInputTask[Chunk]):
    """One result for each text or list of ids.

    locates: the results have the places of the tokens in a text.
    needs_only_ids: the item of a text that begins and ends here has its ids, and nothing else.
    """

    locates: ClassVar[bool] = False
    needs_only_ids: ClassVar[bool] = True

    async def items(
        self, caller: Caller, request: Chunk, served: ServedModel, cost: int
    ) -> Sequence[SequenceInput]:
        if request.input is None:
            raise InvalidRequest("'input' is missing: send a text", param="input")
        inputs = split_inputs(request.input, self.limits, "input", served.chunks_or_parts)
        starts = await self.starts(caller, request, served, len(inputs), cost)
        if sum(count_characters(inputs, starts)) <= served.long_characters:
            whole = not request.more and not any(starts)
            if whole and len(inputs) > 1 and self.needs_only_ids:
                ids = encode_texts(served, inputs)
                if ids is not None:
                    return PackedInputs(ids)
            items = []
            for content, start in zip(inputs, starts, strict=True):
                items.append(self.text_item(request, served, content, start, None))
            return items

        def read_slice(first: int, end: int, tokens: Tokens | None) -> list[SequenceInput]:
            pairs = zip(inputs[first:end], starts[first:end], strict=True)
            return [
                self.text_item(request, served, content, start, tokens) for content, start in pairs
            ]

        return await self.read_inputs(
            caller,
            served,
            inputs,
            starts,
            "input",
            read_slice,
            more=request.more,
            locate=self.locates,
        )

    def text_item(
        self,
        request: Chunk,
        served: ServedModel,
        content: str | list[int],
        start: Snapshot | None,
        tokens: Tokens | None,
    ) -> SequenceInput:
        """The item of a text or a list of ids. tokens: of a long text, if they are read already."""
        ids, word = encode_input(served, content, start, "input", request.more, tokens)
        return SequenceInput(ids, start, word, request.more)
