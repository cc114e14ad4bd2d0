"""The text of a translation, written token by token."""

import codecs
from collections.abc import Sequence

from sruserve.model.text.codec import pieces_after
from sruserve.model.translation.text import SideText
from sruserve.server.engine.partial_translation import PartialTranslation


class TranslationWriter:
    """Writes one translation: all that it writes is what `decode` gives.

    text: of the target language; None: the model has no vocabulary.
    before: the translation before this chunk of its text, whose tokens are written already.
    """

    def __init__(self, text: SideText | None, before: PartialTranslation | None) -> None:
        self._text = text
        self._pieces = () if text is None else pieces_after(text.codec, -1)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begins, self._has_ended = True, False
        if before is not None:
            self.write(before.tokens.tolist(), ends=False)
            self._has_ended = before.finish_reason is not None

    def write(self, ids: Sequence[int], *, ends: bool) -> tuple[str | None, list[int] | None]:
        """The text of further tokens; without a vocabulary, their ids.

        ends: the translation ends with these. Until it does, an incomplete last character waits.
        """
        if self._text is None:
            return None, list(ids)
        own = [i for i in ids if i not in self._text.special]
        final = ends and not self._has_ended
        written = self._decoder.decode(b"".join([self._pieces[i] for i in own]), final)
        if self._begins and written:
            self._begins, written = False, written.removeprefix(" ")
        return written, None
