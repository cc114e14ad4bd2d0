"""Ask a model for the results of some lines at once, and write each as a line of JSON."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import time
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sruserve.api.local_model import LocalModel, make_request
from sruserve.batch.class_lines import class_lines
from sruserve.batch.entries import CONTENTS, Entry, are_bare, contents_of, lines_of
from sruserve.server.engine.results import Classified, ClassifiedRows
from sruserve.server.engine.snapshot import Row
from sruserve.server.errors import (
    DeadlineExceeded,
    GrammarsNeedLlguidance,
    InvalidRequest,
    ServeError,
)
from sruserve.server.http.error_mapping import error_fields, status_of
from sruserve.server.json_output import json_bytes
from sruserve.server.tasks.completion_request import CompletionRequest
from sruserve.server.tasks.requests import ClassifyRequest, EmbedRequest

_PREFIXES = {
    "ClassifyRequest": "cls",
    "TagRequest": "tag",
    "RegressRequest": "reg",
    "AnswerRequest": "ans",
    "TranslateRequest": "tr",
}
_OPTIONAL = ("state", "logprobs", "stop_reason", "token_ids", "log_probability", "alignment")
ID_PREFIX = "batch_req_"
# What a line alone can cause: by its content, its own `timeout_ms`, or its constraint.
_WRONG = (InvalidRequest, DeadlineExceeded, GrammarsNeedLlguidance)


@dataclass(slots=True)
class Answer:
    """A line of the output, or, of a line that is wrong, one of the file of errors.

    Lines that were asked together may be one answer: `line` is that of the last one, and `steps`
    are those of all of them.
    """

    line: int
    content: bytes
    wrong: bool = False
    steps: int = 0


async def answer(model: LocalModel, entries: Sequence[Entry]) -> list[Answer]:
    """Return the answers to entries with one key, in their order.

    If one of them is wrong, the others are computed again without it. Raises `ServeError` if the
    model fails, which is no line's fault. No client waits for the loop meanwhile, so long results
    are described and encoded on it.
    """
    first = entries[0]
    try:
        if first.problem is not None:
            raise first.problem
        if first.schema is CompletionRequest:
            return [await _complete(model, first)]
        return await _results(model, entries)
    except _WRONG as error:
        if len(entries) == 1:
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
            _drop_absent(choice)
        return _own(entry, choices)


async def _results(model: LocalModel, entries: Sequence[Entry]) -> list[Answer]:
    fields = dict(entries[0].fields)
    if entries[0].key is not None:
        for name in CONTENTS:
            if name in fields:
                fields[name] = contents_of(entries, name)
    request = make_request(entries[0].schema, **fields)
    async with model.results(request) as (task, results):
        served = model.served
        if isinstance(request, ClassifyRequest) and are_bare(entries):
            scores = _scores(results.values)
            if scores is not None:
                lines = lines_of(entries)
                content = class_lines(served.labels).write(lines, scores)
                return [Answer(lines[-1], content, steps=results.steps)]
        pairs = results.results
        described = [task.describe(served, item, result) for item, result in pairs]
        if isinstance(request, EmbedRequest) and request.encoding_format == "base64":
            _in_base64(described, [result.vector for _, result in pairs])
        if entries[0].key is None:
            steps = sum(result.steps for _, result in pairs)
            return [_line(served.name, entries[0], described, steps)]
        return [
            _line(served.name, entry, [values], result.steps)
            for entry, values, (_, result) in zip(entries, described, pairs, strict=True)
        ]


def _scores(results: Sequence[Classified]) -> NDArray[np.float32] | None:
    """Return the scores of results, (results, classes), if they have nothing else."""
    if isinstance(results, ClassifiedRows):
        return results.probabilities
    rows = [each.probabilities for each in results if each.state is None]
    if len(rows) < len(results) or any(row is None for row in rows):
        return None
    return np.stack(cast("list[Row]", rows))


def _in_base64(described: Sequence[dict[str, Any]], vectors: Sequence[Any]) -> None:
    """Replace the vectors of descriptions by their bytes in base64."""
    for values, vector in zip(described, vectors, strict=True):
        if vector is not None:
            values["embedding"] = b64encode(vector.astype("<f4").tobytes()).decode()


def _line(name: str, entry: Entry, results: Sequence[dict[str, Any]], steps: int) -> Answer:
    """Return the line of an entry.

    name: of the model. results: of each of the entry's inputs. steps: of all of these together.
    """
    if entry.custom_id is None:
        return _own(entry, list(map(_drop_absent, results)))
    if entry.schema is EmbedRequest:
        data = [
            {"object": "embedding", "index": index, **_drop_absent(values)}
            for index, values in enumerate(results)
        ]
        usage = {"prompt_tokens": steps, "total_tokens": steps}
        return _openai(entry, {"object": "list", "data": data, "model": name, "usage": usage})
    number = f"{_PREFIXES.get(entry.schema.__name__, 'res')}-{entry.line}"
    body = {"id": number, "model": name, "results": results, "usage": {"steps": steps}}
    return _openai(entry, body)


def _own(entry: Entry, results: Sequence[Mapping[str, Any]]) -> Answer:
    """Return the line of an entry of our own: the fields of its result, or a list of several."""
    line: dict[str, Any] = {"line": entry.line}
    if entry.id is not None:
        line["id"] = entry.id
    line.update(results[0] if len(results) == 1 else {"results": results})
    return Answer(entry.line, json_bytes(line) + b"\n")


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
        return _openai(entry, {"error": error_fields(error)}, status_of(type(error)))
    head: dict[str, Any] = {"line": entry.line}
    if entry.id is not None:
        head["id"] = entry.id
    content = {**head, "code": error.code, "reason": error.message}
    return Answer(entry.line, json_bytes(content) + b"\n", wrong=True)


def _drop_absent(values: dict[str, Any]) -> dict[str, Any]:
    """Drop the fields without a value that a line need not have; return the result."""
    for name in _OPTIONAL:
        if name in values and values[name] is None:
            del values[name]
    return values
