"""Compiled constraints: made once for a model, away from the event loop, and kept for a while."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from sruserve.model.text import Codec
from sruserve.server.api.call import json_bytes
from sruserve.server.api.completion_request import CompletionRequest, Schema
from sruserve.server.api.served import Served
from sruserve.server.engine.constraint import Constraint
from sruserve.server.errors import InvalidRequest, Overloaded

_MOST_KEPT = 64
_MOST_WAITING = 32


class Constraints:
    """The constraints that were asked for last, of all models."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, Constraint] = OrderedDict()
        self._compiling = asyncio.Lock()
        self._waiting = 0

    async def of(self, request: CompletionRequest, served: Served) -> Constraint | None:
        """What the text of a request has to match, if anything.

        Raises `InvalidRequest`, `ConstraintUnsatisfiable`, or `Overloaded` when too many others
        wait for theirs.
        """
        asked = _asked(request)
        if asked is None:
            return None
        field, given = asked
        key = sha256(b"\0".join((served.model.digest.encode(), *map(json_bytes, asked)))).digest()
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        if self._waiting >= _MOST_WAITING:
            raise Overloaded(
                f"{_MOST_WAITING} regular expressions and schemas are waiting to be compiled; "
                "retry after a moment"
            )
        self._waiting += 1
        compiled = asyncio.create_task(self._compile(key, field, given, served.model.codec))
        compiled.add_done_callback(self._was_compiled)
        return await asyncio.shield(compiled)  # it goes on, and counts, if nobody waits any more

    async def _compile(
        self, key: bytes, field: str, given: str | Schema, codec: Codec | None
    ) -> Constraint:
        make: Callable[[Any, Codec | None], Constraint] = (
            Constraint.regex if field == "regex" else Constraint.json_schema
        )
        async with self._compiling:  # one at a time leaves the threads to others
            if key not in self._kept:
                try:
                    self._kept[key] = await asyncio.to_thread(make, given, codec)
                except InvalidRequest as error:
                    error.param = field
                    raise
                if len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
            return self._kept[key]

    def _was_compiled(self, _: object) -> None:
        self._waiting -= 1


def _asked(request: CompletionRequest) -> tuple[str, str | Schema] | None:
    """The field that constrains the text, and what it says."""
    if request.regex is not None:
        return "regex", request.regex
    if request.json_schema is not None:
        return "json_schema", request.json_schema
    schema = request.schema_of_format
    return None if schema is None else ("response_format", schema)
