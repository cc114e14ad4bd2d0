"""What the OpenAPI document says of the hot routes; POST never gets to FastAPI for them.

Other methods do, and get 405.
"""

from typing import Any

from fastapi import APIRouter

from sruserve.server.http import responses as replies
from sruserve.server.http.predict import PredictRequest
from sruserve.server.tasks import requests
from sruserve.server.tasks.completion_request import CompletionRequest

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": replies.ErrorReply, "description": what}
    for status, what in (
        (400, "The body is not JSON"),
        (401, "The API key is missing or unknown"),
        (403, "The state belongs to another tenant"),
        (404, "No such model"),
        (410, "The state has expired"),
        (413, "The body is too long"),
        (422, "The request cannot be served as it is"),
        (429, "The queue is full: retry after the time in `Retry-After`"),
        (500, "The server failed on this request"),
        (503, "The server is stopping: retry elsewhere"),
        (504, "The request waited for too long"),
    )
}
_PREDICT_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": replies.PredictError}
    for status in (400, 401, 404, 413, 422, 429, 500, 503, 504)
}
_EVENTS: dict[str, Any] = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}

router = APIRouter(tags=["inference"])


@router.post("/v1/classify", responses=ERRORS, summary="Classify texts")
async def classify(body: requests.ClassifyRequest) -> replies.ClassifyReply:
    """Label texts or features, or the next chunk of a stream, or pairs of texts."""
    raise NotImplementedError


@router.post("/v1/tag", responses=ERRORS, summary="Label every step")
async def tag(body: requests.TagRequest) -> replies.TagReply:
    """Label each token of texts, or each step of ids or features, and merge labels to spans.

    A span that goes on from the chunk before is `continued`.
    """
    raise NotImplementedError


@router.post("/v1/encode", responses=ERRORS, summary="Compute outputs")
async def encode(body: requests.EncodeRequest) -> replies.EncodeReply:
    """The outputs of a network without a head, for each step."""
    raise NotImplementedError


@router.post("/v1/score", responses=ERRORS, summary="Score texts")
async def score(body: requests.ScoreRequest) -> replies.ScoreReply:
    """Log-likelihood and bits per character of texts under a language model."""
    raise NotImplementedError


@router.post(
    "/v1/completions",
    responses={**ERRORS, 200: _EVENTS},
    summary="Complete prompts",
)
async def completions(body: CompletionRequest) -> replies.CompletionReply:
    """Generate text in OpenAI's shape; with `stream`, as server-sent events of the same shape.

    A stream's `state` is on the chunk that carries `finish_reason`.
    """
    raise NotImplementedError


@router.post("/predict", responses=_PREDICT_ERRORS, summary="Classify texts as TEI")
async def predict(
    body: PredictRequest, model: str | None = None
) -> list[replies.Prediction] | list[list[replies.Prediction]]:
    """The labels of a text, the likeliest first, in text-embeddings-inference's shape.

    A batch gets a list of them for each of its texts.
    """
    raise NotImplementedError
