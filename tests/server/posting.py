"""Post bodies of requests, and check refusals."""

import json
from typing import Any

import httpx

from sruserve.server.http.responses.error import ErrorReply

CLASSIFY, COMPLETE, SCORE = "/v1/classify", "/v1/completions", "/v1/score"


def refusal(reply: httpx.Response, status: int, code: str, param: str | None = None) -> str:
    """Check an error's status, shape, code and field, and return its message."""
    assert reply.headers["content-type"] == "application/json"
    error = ErrorReply.model_validate_json(reply.content, strict=True).error
    assert (reply.status_code, error.code, error.param) == (status, code, param), error.message
    assert len(error.message) > 10
    return error.message


def post(client: httpx.Client, path: str, body: Any) -> httpx.Response:
    model = "question" if path == CLASSIFY else "characters"
    content = body if isinstance(body, bytes) else json.dumps({"model": model} | body)
    return client.post(path, content=content)
