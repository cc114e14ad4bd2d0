"""`POST /v1/translate`: translations, as a whole or as server-sent events."""

from collections.abc import Sequence
from typing import Any

from sruserve.server.auth import Tenants
from sruserve.server.engine.results import Translated
from sruserve.server.http.call import ReplyWriter
from sruserve.server.http.sse import DONE, error_event, send_events
from sruserve.server.http.v1 import PerInputEndpoint
from sruserve.server.json_output import json_bytes, long_json
from sruserve.server.offload import LONG_CHARACTERS
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.translate import TranslateTask
from sruserve.server.tasks.translate_request import TranslateRequest
from sruserve.server.tasks.translation import Translation


class TranslateEndpoint(PerInputEndpoint[TranslateRequest]):
    """Replies with the translations of each text. ping_seconds: the longest silence of a stream."""

    def __init__(
        self, path: str, task: TranslateTask, tenants: Tenants, ping_seconds: float
    ) -> None:
        super().__init__(path, task, tenants)
        self._translate, self._ping_seconds = task, ping_seconds

    async def answer(
        self,
        caller: Caller,
        reply: ReplyWriter,
        request: TranslateRequest,
        served: Any,
        cost: int,
    ) -> None:
        if not request.stream:
            await super().answer(caller, reply, request, served, cost)
            return
        async with self._translate.stream(caller, request, served, cost) as translation:
            events = _Events(f"{self._prefix}-{caller.number}", request, translation)
            await send_events(
                caller, reply, translation, events, self._ping_seconds, TranslateRequest
            )


class _Events:
    """Encodes the chunks of translations. reply_id: of the reply."""

    error = staticmethod(error_event)

    def __init__(self, reply_id: str, request: TranslateRequest, translation: Translation) -> None:
        self._translation, self._scores = translation, request.scores
        self.long = translation.state_numbers > LONG_CHARACTERS
        self._header = {"id": reply_id, "model": translation.model}
        self._head = b"data: " + json_bytes(self._header)[:-1] + b',"results":['

    def of(self, chunks: Sequence[tuple[int, Translated]], large: bool) -> bytes:
        """The events of the chunks, one for each that has something new."""
        encode, events = long_json if large else json_bytes, []
        for index, piece in chunks:
            part = self._shown(self._translation.part(index, piece))
            if part["text"] or part["token_ids"] or part["finish_reason"]:
                events.append(self._head + encode(part) + b"]}\n\n")
        return b"".join(events)

    def last(self) -> bytes:
        """The event with the states and with the steps of all translations, then `[DONE]`."""
        parts = [self._shown(part) for part in self._translation.states()]
        usage = {"steps": self._translation.steps}
        value = {**self._header, "results": parts, "usage": usage}
        return b"data: " + (long_json if self.long else json_bytes)(value) + b"\n\n" + DONE

    def _shown(self, part: dict[str, Any]) -> dict[str, Any]:
        return part if self._scores else part | {"score": None, "log_probability": None}
