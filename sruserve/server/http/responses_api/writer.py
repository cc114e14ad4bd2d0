"""Encode a completion as a response of OpenAI's Responses API, whole or as events."""

from time import time
from typing import Any

from sruserve.server.errors import ServeError
from sruserve.server.http.responses_api.request import ResponsesRequest
from sruserve.server.http.responses_api.response_id import response_id
from sruserve.server.json_output import json_bytes, long_json
from sruserve.server.offload import LONG_CHARACTERS
from sruserve.server.tasks.completion import Chunks, CompletionResponse

Json = dict[str, Any]


class ResponseJson:
    """Encodes one response; the events of its stream are encoded in their order.

    number: of the request.
    """

    def __init__(
        self, number: str, request: ResponsesRequest, completion: CompletionResponse
    ) -> None:
        self._number, self._completion = number, completion
        self._item_id = f"msg_{number}"
        self._texts: list[str] = []
        self._events = 0
        self._stable_id = request.stable_id
        self._last: Json | None = None  # the choice with the end of the text
        self._header: Json = {
            "id": response_id(None, number),
            "object": "response",
            "created_at": int(time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": request.token_limit,
            "metadata": request.metadata or {},
            "model": completion.model,
            "output": [],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": request.stores,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "text": {"format": {"type": request.format}},
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0 if request.top_p is None else request.top_p,
            "truncation": request.truncation or "disabled",
            "usage": None,
        }

    def whole(self, choice: Json, large: bool) -> bytes:
        """The reply to a request that does not stream."""
        self._texts.append(choice["text"])
        self._last = choice
        return (long_json if large else json_bytes)(self._ended())

    @property
    def long(self) -> bool:
        """Whether encoding the last events would block the event loop."""
        return sum(map(len, self._texts)) > LONG_CHARACTERS

    def of(self, chunks: Chunks, large: bool) -> bytes:
        """The events of the chunks, after those that begin the response."""
        parts = [self._opening()]
        for _, chunk in chunks:
            choice = self._completion.choice(0, chunk)
            if choice["finish_reason"] is not None:
                self._last = choice
            if choice["text"]:
                self._texts.append(choice["text"])
                delta = {**self._place(), "delta": choice["text"], "logprobs": []}
                parts.append(self._event("response.output_text.delta", delta, large))
        return b"".join(parts)

    def last(self) -> bytes:
        """The events that end the text and the response."""
        opening, long, text = self._opening(), self.long, "".join(self._texts)
        self._texts = [text]
        response = self._ended()
        (item,) = response["output"]
        (part,) = item["content"]
        done = {**self._place(), "text": text, "logprobs": []}
        return b"".join(
            (
                opening,
                self._event("response.output_text.done", done, long),
                self._event("response.content_part.done", {**self._place(), "part": part}, long),
                self._event("response.output_item.done", {"output_index": 0, "item": item}, long),
                self._event("response.completed", {"response": response}, long),
            )
        )

    def error(self, problem: ServeError) -> bytes:
        """The events of an error after the first event."""
        reason = {"code": problem.code, "message": problem.message}
        failed = {**self._header, "status": "failed", "error": reason}
        opening = self._opening()  # the client may have had pings alone
        error = self._event("error", {**reason, "param": problem.param})
        return opening + error + self._event("response.failed", {"response": failed})

    def _opening(self) -> bytes:
        """The events that begin the response; empty if it has begun."""
        if self._events:
            return b""
        item = self._item("in_progress", [])
        return b"".join(
            (
                self._event("response.created", {"response": self._header}),
                self._event("response.in_progress", {"response": self._header}),
                self._event("response.output_item.added", {"output_index": 0, "item": item}),
                self._event("response.content_part.added", {**self._place(), "part": _part("")}),
            )
        )

    def _event(self, kind: str, fields: Json, long: bool = False) -> bytes:
        data = {"type": kind, "sequence_number": self._events, **fields}
        self._events += 1
        encode = long_json if long else json_bytes
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode(data))

    def _place(self) -> Json:
        return {"item_id": self._item_id, "output_index": 0, "content_index": 0}

    def _item(self, status: str, content: list[Json]) -> Json:
        return {
            "id": self._item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }

    def _ended(self) -> Json:
        """The response with its text, its usage, and the id that continues it."""
        choice, usage = self._last, self._completion.usage
        assert choice is not None, "a completion has a last chunk"
        status, details = "completed", None
        if choice["finish_reason"] == "length":
            status = "incomplete"
            details = {"reason": choice["stop_reason"] or "max_output_tokens"}
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        inputs, outputs = usage["prompt_tokens"] + cached, usage["completion_tokens"]
        field = "state_id" if self._stable_id and choice["state"] is not None else "id"
        return {
            **self._header,
            field: response_id(choice["state"], self._number),
            "status": status,
            "incomplete_details": details,
            "output": [self._item(status, [_part("".join(self._texts))])],
            "usage": {
                "input_tokens": inputs,
                "input_tokens_details": {"cached_tokens": cached},
                "output_tokens": outputs,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": inputs + outputs,
            },
        }


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
