"""What the reply to each chunk of a text has of its translation."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from sruserve.model.bundled import BUNDLED
from sruserve.model.translation.folder import load_translation
from sruserve.server.engine.partial_translation import PartialTranslation
from sruserve.server.engine.results import Hypothesis
from sruserve.server.tasks.translate import TranslateTask

MODEL = load_translation(BUNDLED / "numbers")
INCOMPLETE = 130  # the first byte of two


def described(earlier: list[int], finish_reason: str | None, ids: list[int]) -> str:
    """The text of a reply. finish_reason: after the earlier chunks; the translation ends now."""
    begun = PartialTranslation.begin(MODEL.translator, 2, 0)
    tokens = np.array(earlier, np.int64)
    before = replace(begun, tokens=tokens, finish_reason=finish_reason)
    hypothesis = Hypothesis(np.array(ids, np.int64), -1.0, -1.0, "length")
    served, item = SimpleNamespace(model=MODEL), SimpleNamespace(before=before, scores=False)
    task = cast(TranslateTask, None)  # which has no part in it
    reply: Any = TranslateTask._described(task, cast(Any, served), cast(Any, item), hypothesis)
    return str(reply["text"])


def test_a_character_that_stays_incomplete_is_written_once() -> None:
    assert described([], None, [INCOMPLETE]) == "\ufffd"
    assert described([INCOMPLETE], None, [INCOMPLETE]) == "\ufffd"
    assert described([INCOMPLETE], "length", [INCOMPLETE]) == ""
