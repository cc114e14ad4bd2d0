"""The routes of `/v1` that ask a model for something; other protocols ask through them."""

from typing import NamedTuple

from sruserve.server.api.classify import ClassifyRoute
from sruserve.server.api.completions import CompletionRoute
from sruserve.server.api.encode import EncodeRoute
from sruserve.server.api.score import ScoreRoute
from sruserve.server.api.tag import TagRoute


class Routes(NamedTuple):
    """One of each."""

    classify: ClassifyRoute
    tag: TagRoute
    encode: EncodeRoute
    score: ScoreRoute
    complete: CompletionRoute
