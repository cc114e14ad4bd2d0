"""Convert all exceptions of requests to a `ServeError` for the client."""

import difflib
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from sruserve.server.errors import (
    InternalError,
    InvalidRequest,
    MalformedBody,
    NotFinite,
    ServeError,
)
from sruserve.server.field_bounds import in_words
from sruserve.server.tasks.completion_request import MAX_BIASES
from sruserve.server.tasks.requests import EXPLAINED, INPUT_SHAPES

log = logging.getLogger("sruserve.api")

# Lists stop at their first error, but each unknown field is one, and explaining takes time.
_MAX_PROBLEMS = 1000
_EMPTY = "EOF while parsing a value at line 1 column 0"  # the parser's reason for an empty request
_OUT_OF_RANGE = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
_NO_INTEGER = ("int_type", "int_parsing", "int_from_float")
_MAX_NAME = 100  # characters

# What other protocols call the text of a request.
_TEXT_NAMES = ("text", "texts", "input", "inputs", "sentence", "sentences", "prompt", "prompts")

# Fields with several shapes, because pydantic would explain each shape that does not match.
_SHAPES = {
    **dict.fromkeys(("input", "pair", "prompt"), INPUT_SHAPES),
    "state": "a state as it was returned, or a list of them (null for a new stream)",
    "stop": "a text or a list of at most 16 texts, each of 1 to 256 characters",
    "json_schema": "a JSON schema: an object, or true",
    "logit_bias": f"an object of at most {MAX_BIASES} token ids, as strings, each with a number "
    "from -100 to 100",
}


def as_serve_error(error: BaseException, fields: type[BaseModel]) -> ServeError:
    """Explain an exception; an unexpected one is logged, and its message is not sent."""
    if isinstance(error, ServeError):
        return error
    if isinstance(error, ValidationError):
        if (count := error.error_count()) > _MAX_PROBLEMS:
            return InvalidRequest(
                f"the request has {count} errors, probably unknown fields; send only the "
                "fields that its documentation lists"
            )
        problems = error.errors(include_url=False, include_input=False)
        return explain_validation(problems, fields.model_fields)
    log.error("a request failed unexpectedly", exc_info=error)
    return InternalError(
        "the server failed on this request; ask the operator for the reason in its log"
    )


def explain_validation(problems: Iterable[Any], fields: Mapping[str, FieldInfo]) -> ServeError:
    """pydantic's first error in the words of the API; a missing field names an unknown one too."""
    problems = list(problems)
    problem = problems[0]
    kind, message = problem["type"], problem["msg"]
    path = [_short(part) for part in problem["loc"] if part != "body"]
    param = str(path[0]) if path else None
    if kind == "json_invalid":
        reason = problem.get("ctx", {}).get("error", message)
        if reason == _EMPTY:
            return MalformedBody(
                "the request is empty; send a JSON object with the fields that its documentation "
                "lists"
            )
        if "unicode" in reason or "hex escape" in reason:
            reason += " (text must be valid UTF-8, without lone surrogates)"
        return MalformedBody(f"the request is not valid JSON: {reason}")
    if kind == "finite_number":
        return NotFinite(f"{_place(path)} must be a finite number", param=param)
    if kind == "extra_forbidden":
        return InvalidRequest(_unknown(param, fields), param=param)
    if kind == "missing":
        unknown = [p["loc"][-1] for p in problems if p["type"] == "extra_forbidden"]
        also = f"; {_unknown(_short(unknown[0]), fields)}" if unknown else ""
        return InvalidRequest(f"{_place(path)} is missing{also}", param=param)
    if kind == "model_type":
        return InvalidRequest("the request must be a JSON object")
    if kind == EXPLAINED:
        return InvalidRequest(message, param=param)
    field = fields.get(str(param))
    if param in _SHAPES and (field is None or field.annotation is not str):
        return InvalidRequest(f"'{param}' must be {_SHAPES[param]}", param=param)
    if len(path) == 1 and field is not None and (allowed := in_words(field)):
        if kind in _OUT_OF_RANGE:
            message = f"must be {allowed}"
        elif kind in _NO_INTEGER:
            message = f"must be an integer {allowed}"
    if kind == "value_error":
        message = message.removeprefix("Value error, ")
        return InvalidRequest(f"{_place(path)}: {message}" if path else message, param=param)
    return InvalidRequest(
        f"{_place(path)} {message.removeprefix('Input ').replace('should', 'must', 1)}", param=param
    )


def _unknown(name: object, fields: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(name), list(fields), n=1)
    text = next((field for field in ("input", "prompt") if field in fields), None)
    if name in _TEXT_NAMES and text and close != [text]:
        return f"unknown field '{name}'; send the text as '{text}'"
    return f"unknown field '{name}'; " + (
        f"did you mean '{close[0]}'?" if close else "leave it out"
    )


def _short(part: int | str) -> int | str:
    """A part of a field's path, shortened: a client may send a very long name."""
    return part[:_MAX_NAME] if isinstance(part, str) else part


def _place(path: list[Any]) -> str:
    """'features[3][0]' for ("features", 3, 0)."""
    if not path:
        return "the request"
    tail = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path[1:])
    return f"'{path[0]}{tail}'"
