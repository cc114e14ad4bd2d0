"""Read the texts of a request to translate, or their next chunks."""

from dataclasses import dataclass

from sruserve.server.engine.translation.source import SourceInput
from sruserve.server.errors import InvalidRequest
from sruserve.server.offload import offload
from sruserve.server.repository.encoding import Tokens
from sruserve.server.repository.served_translator import ServedTranslator
from sruserve.server.repository.text_work import pool_for_part
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.inputs import split_inputs
from sruserve.server.tasks.limits import InputLimits
from sruserve.server.tasks.partial_translations import read_states
from sruserve.server.tasks.reading import count_characters, read_parts, turns
from sruserve.server.tasks.translate_request import TranslateRequest
from sruserve.server.tasks.translation_ids import check_length, source_ids


@dataclass(slots=True)
class Source(SourceInput):
    """The ids of one text. scores: the reply has the scores of its translations."""

    scores: bool = False


async def read_sources(
    caller: Caller,
    request: TranslateRequest,
    served: ServedTranslator,
    limits: InputLimits,
    cost: int,
) -> list[Source]:
    """The ids of each text, with those around it; long or many texts in turns, on a thread.

    Raises `InvalidRequest` for a text that the model does not read.
    """
    if request.input is None:
        raise InvalidRequest("'input' is missing: send a text", param="input")
    inputs = split_inputs(request.input, limits, "input", "split it into sentences")
    befores = await read_states(caller, request, served, len(inputs), cost)
    request.input = None  # from now on, only the job refers to what was read
    more, scores = request.more, request.scores

    def read_slice(first: int, end: int, tokens: Tokens | None) -> list[Source]:
        sources = []
        for content, before in zip(inputs[first:end], befores[first:end], strict=True):
            ids, word = source_ids(served, content, before, more, tokens)
            source = Source(ids, word=word, more=more, before=before, scores=scores)
            check_length(served, source, in_parts=tokens is not None)
            sources.append(source)
        return sources

    words = ["" if before is None else before.word for before in befores]
    carried = list(map(len, words))
    size, _ = count_characters(inputs, [])
    if size + sum(carried) <= served.long_characters:
        return read_slice(0, len(inputs), None)
    text, pool, sources = served.model.source_text, served.pool, list[Source]()
    turn = limits.turn_characters
    for first, end, size in turns(inputs, carried, turn):
        tokens, content, word, own = None, inputs[first], words[first], pool
        if text is not None and len(word) + len(content) > turn:
            if isinstance(content, str):
                arguments = text.codec, pool, content, word, "input", more, False, turn
                tokens = await read_parts(caller, *arguments, limit=served.engine.max_source)
            else:
                own = pool_for_part(pool, text.codec, word)  # ids end the word before them
        sources += await offload(
            True, read_slice, first, end, tokens, cost=size, caller=caller, pool=own
        )
    return sources
