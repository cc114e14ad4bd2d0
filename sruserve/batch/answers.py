"""Ask a model for the results of some lines at once, and write each as a line of JSON."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import Any

from sruserve.api.local_model import LocalModel, make_request
from sruserve.batch.entries import CONTENTS, Entry
from sruserve.server.errors import InvalidRequest, ServeError
from sruserve.server.json_output import json_bytes
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.requests import EmbedRequest, Request

_PREFIXES = {
    "ClassifyRequest": "cls", "TagRequest": "tag", "RegressRequest": "reg", "AnswerRequest": "ans"
}  # fmt: skip
_OPTIONAL = frozenset({"state", "logprobs", "stop_reason", "token_ids"})
ID_PREFIX = "batch_req_"


@dataclass(slots=True)
class Answer:
    """A line of the output, or, of a line that is wrong, one of the file of errors."""

    line: int
    content: bytes
    wrong: bool = False


async def answer(model: LocalModel, entries: Sequence[Entry]) -> list[Answer]:
    """Return the answers to entries with one key, in their order.

    If one of them is wrong, the others are asked again without it. Raises `ServeError` if the
    model fails, which is no line's fault. No client waits for the loop meanwhile, so long results
    are described and encoded on it.
    """
    (first, *others) = entries
    try:
        if first.problem is not None:
            raise first.problem
        if first.schema is CompletionRequest:
            return [await _complete(model, first)]
        return await _results(model, entries)
    except InvalidRequest as error:
        if not others:
            return [_refusal(first, error)]
    middle = len(entries) // 2
    return await answer(model, entries[:middle]) + await answer(model, entries[middle:])


async def _complete(model: LocalModel, entry: Entry) -> Answer:
    request = make_request(CompletionRequest, **entry.fields)
    async with model.complete(request) as (_, completion):
        choices = await completion.choices()
        if entry.custom_id is not None:
            body = {
                "id": f"cmpl-{entry.line}",
                "object": "text_completion",
                "created": int(time()),
                "model": completion.model,
                "choices": choices,
                "usage": completion.usage,
            }
            return _openai(entry, body)
        for choice in choices:
            del choice["index"]
        results = [_known(choice) for choice in choices]
        return _own(entry, results)


async def _results(model: LocalModel, entries: Sequence[Entry]) -> list[Answer]:
    fields = dict(entries[0].fields)
    if entries[0].key is not None:
        for name in CONTENTS:
            if name in fields:
                fields[name] = [entry.fields[name] for entry in entries]
    request = make_request(entries[0].schema, **fields)
    async with model.results(request) as (task, results):
        described = [
            (_described(request, task.describe(model.served, item, result), result), result)
            for item, result in results.results
        ]
        if entries[0].key is None:
            return [_line(model, entries[0], described)]
        pairs = zip(entries, described, strict=True)
        return [_line(model, entry, [each]) for entry, each in pairs]


def _described(request: Request, described: dict[str, Any], result: Any) -> dict[str, Any]:
    in_base64 = isinstance(request, EmbedRequest) and request.encoding_format == "base64"
    if in_base64 and result.vector is not None:
        described["embedding"] = b64encode(result.vector.astype("<f4").tobytes()).decode()
    return described


def _line(
    model: LocalModel, entry: Entry, described: Sequence[tuple[dict[str, Any], Any]]
) -> Answer:
    """Return the line of an entry. described: of each of its inputs, with its result."""
    results = [values for values, _ in described]
    if entry.custom_id is None:
        return _own(entry, [_known(values) for values in results])
    name, steps = model.served.name, sum(result.steps for _, result in described)
    if entry.schema is EmbedRequest:
        data = [
            {"object": "embedding", "index": index, **_known(values)}
            for index, values in enumerate(results)
        ]
        usage = {"prompt_tokens": steps, "total_tokens": steps}
        return _openai(entry, {"object": "list", "data": data, "model": name, "usage": usage})
    number = f"{_PREFIXES.get(entry.schema.__name__, 'res')}-{entry.line}"
    body = {"id": number, "model": name, "results": results, "usage": {"steps": steps}}
    return _openai(entry, body)


def _own(entry: Entry, results: Sequence[Mapping[str, Any]]) -> Answer:
    """Return the line of an entry of our own: the fields of its result, or a list of several."""
    head: dict[str, Any] = {"line": entry.line}
    if entry.id is not None:
        head["id"] = entry.id
    fields = results[0] if len(results) == 1 else {"results": results}
    return Answer(entry.line, json_bytes({**head, **fields}) + b"\n")


def _openai(entry: Entry, body: Mapping[str, Any], status: int = 200) -> Answer:
    """Return a line as OpenAI's batches return it."""
    number = f"{ID_PREFIX}{entry.line}"
    response = {"status_code": status, "request_id": number, "body": body}
    content = {
        "id": number, "custom_id": entry.custom_id, "response": response, "error": None
    }  # fmt: skip
    return Answer(entry.line, json_bytes(content) + b"\n", wrong=status != 200)


def _refusal(entry: Entry, error: ServeError) -> Answer:
    """Return the line of the file of errors."""
    if entry.custom_id is not None:
        return _openai(entry, {"error": error.fields}, error.status)
    head: dict[str, Any] = {"line": entry.line}
    if entry.id is not None:
        head["id"] = entry.id
    content = {**head, "code": error.code, "reason": error.message}
    return Answer(entry.line, json_bytes(content) + b"\n", wrong=True)


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result without the fields that a line need not have."""
    return {
        name: value for name, value in values.items() if value is not None or name not in _OPTIONAL
    }
