"""Read the texts of a request to translate."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sruserve.server.engine.job import SequenceInput
from sruserve.server.errors import EmptyInput, InputTooLong, InvalidRequest
from sruserve.server.offload import offload
from sruserve.server.repository.encoding import Tokens, check_range, read_part
from sruserve.server.repository.served_translator import ServedTranslator
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.inputs import split_inputs
from sruserve.server.tasks.limits import InputLimits
from sruserve.server.tasks.task import TURN, count_characters, read_parts, turns
from sruserve.server.tasks.translate_request import TranslateRequest


@dataclass(slots=True)
class Source(SequenceInput):
    """The ids of one text. scores: the reply has the scores of its translations."""

    scores: bool = False


async def read_sources(
    caller: Caller, request: TranslateRequest, served: ServedTranslator, limits: InputLimits
) -> list[Source]:
    """The ids of each text, with those around it; long or many texts in turns, on a thread.

    Raises `InvalidRequest` for a text that the model does not read.
    """
    if request.input is None:
        raise InvalidRequest("'input' is missing: send a text", param="input")
    inputs = split_inputs(request.input, limits, "input", "split it into sentences")
    request.input = None  # from now on, only the job refers to what was read
    starts = [None] * len(inputs)
    if sum(count_characters(inputs, starts)) <= served.long_characters:
        return [_source(served, content, None, request.scores) for content in inputs]

    def read_slice(first: int, end: int, tokens: Tokens | None) -> list[Source]:
        contents = inputs[first:end]
        return [_source(served, content, tokens, request.scores) for content in contents]

    text, sources = served.model.source_text, list[Source]()
    for first, end, size in turns(inputs, starts):
        tokens, content = None, inputs[first]
        if text is not None and isinstance(content, str) and len(content) > TURN:
            arguments = text.codec, served.pool, content, "", "input", False, False
            tokens = await read_parts(caller, *arguments)
        sources += await offload(
            True, read_slice, first, end, tokens, cost=size, caller=caller, pool=served.pool
        )
    return sources


def _source(
    served: ServedTranslator, content: str | list[int], tokens: Tokens | None, scores: bool
) -> Source:
    """One source with the ids around it. tokens: of a text that is read already.

    Raises `InvalidRequest` for one that the model does not read.
    """
    if not len(content):
        raise EmptyInput("a text of 'input' is empty: there is nothing to translate", param="input")
    if isinstance(content, str):
        ids = _text_ids(served, content, tokens)
    else:
        size = served.model.config.source.vocab_size
        ids = check_range(content, size, served.name, "input")
    most = served.engine.max_source
    if len(ids) > most:
        because = (
            f"{served.name} has {most} positions"
            if most == served.model.translator.max_source
            else f"a text may have {most} (SRUSERVE_MAX_BATCH_TOKENS)"
        )
        raise InputTooLong(
            f"a text of 'input' has {len(ids)} tokens, with those around it, and {because}: split "
            "it into sentences",
            param="input",
        )
    return Source(ids, scores=scores)


def _text_ids(served: ServedTranslator, content: str, tokens: Tokens | None) -> NDArray[np.int64]:
    """The ids of a text, with those around it."""
    text = served.model.source_text
    if text is None:
        raise InvalidRequest(f"{served.name} has no vocabulary: send token ids", param="input")
    if tokens is None:
        tokens = read_part(text.codec, content, "", False, "input", False)
    if not len(tokens.ids):
        raise EmptyInput(
            "a text of 'input' has no token: there is nothing to translate", param="input"
        )
    return text.framed(tokens.ids).numpy()
