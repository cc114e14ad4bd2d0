"""Turn a text to translate, or its next chunk, into ids."""

from collections.abc import Sequence

import numpy as np

from sruserve.model.translation.text import SideText
from sruserve.server.engine.partial_translation import PartialTranslation
from sruserve.server.engine.translation.source import SourceInput
from sruserve.server.errors import EmptyInput, InputTooLong, InvalidRequest
from sruserve.server.repository.encoding import Ids, Tokens, check_range, read_part
from sruserve.server.repository.served_translator import ServedTranslator

_NONE: Ids = np.zeros(0, np.int64)


def source_ids(
    served: ServedTranslator,
    content: str | Sequence[int],
    before: PartialTranslation | None,
    more: bool,
    tokens: Tokens | None = None,
) -> tuple[Ids, str]:
    """The ids of one text or chunk, with those around the text, and its unfinished word.

    tokens: of a text that is read already.

    Raises `InvalidRequest` for a text that the model does not read. What follows a translation that
    has ended is not read.
    """
    if before is not None and before.finish_reason is not None:
        return _NONE, ""
    if not len(content) and (before is None or before.is_new):
        raise EmptyInput("a text of 'input' is empty: there is nothing to translate", param="input")
    text = served.model.source_text
    unfinished = "" if before is None else before.word
    begins = before is None or not len(before.rows)
    if not isinstance(content, str):
        size = served.model.config.source.vocab_size
        ids = check_range(list(content), size, served.name, "input")
        if unfinished and text is not None:  # ids begin a new word
            word_ids = text.codec.encode("", unfinished)[0]
            ids = np.concatenate([text.framed(word_ids, begins=begins, ends=False), ids])
        return ids, ""
    if text is None:
        raise InvalidRequest(f"{served.name} has no vocabulary: send token ids", param="input")
    return _text_ids(text, content, unfinished, begins, more, tokens)


def _text_ids(
    text: SideText, content: str, unfinished: str, begins: bool, more: bool, tokens: Tokens | None
) -> tuple[Ids, str]:
    """begins: nothing of the text has been read before."""
    if tokens is None:
        tokens = read_part(text.codec, content, unfinished, more, "input", False)
    if len(tokens.ids) or not begins:
        return text.framed(tokens.ids, begins=begins, ends=not more).numpy(), tokens.word
    if more:
        return _NONE, tokens.word
    raise EmptyInput("a text of 'input' has no token: there is nothing to translate", param="input")


def check_length(served: ServedTranslator, source: SourceInput, *, in_parts: bool = False) -> None:
    """Raise `InputTooLong` for more ids than the model, or a step of the server, can read.

    in_parts: the text may have more, because its parts were read only until there were too many.
    """
    positions = served.engine.max_source
    if source.length <= positions:
        return
    because = (
        f"{served.name} has {positions} positions"
        if positions == served.model.translator.max_source
        else f"a text may have {positions} (SRUSERVE_MAX_BATCH_TOKENS)"
    )
    chunks = "" if source.before is None else " and those of earlier chunks"
    raise InputTooLong(
        f"a text of 'input' has {'at least ' * in_parts}{source.length} tokens, with those around "
        f"it{chunks}, and {because}: split it into sentences",
        param="input",
    )
