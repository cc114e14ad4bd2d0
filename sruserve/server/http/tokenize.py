"""`POST /tokenize` and `POST /detokenize`, in vLLM's shape."""

from collections.abc import Callable
from typing import Any

from sruserve.server.auth import Tenants
from sruserve.server.errors import ModelNotFound, UnfitInput, WrongTask
from sruserve.server.http.call import ReplyWriter
from sruserve.server.http.responses.tokenize import DetokenizeReply, TokenizeReply
from sruserve.server.http.routes import ANY_TENANT, BODY, Reply, Route
from sruserve.server.http.v1 import TaskEndpoint
from sruserve.server.json_output import json_bytes, long_json
from sruserve.server.offload import LONG_CHARACTERS, offload
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.requests import DetokenizeRequest, TokenizeRequest
from sruserve.server.tasks.table import Tasks
from sruserve.server.tasks.tokenize import DetokenizeTask, Tokenized, TokenizeTask


class TokenizeEndpoint(TaskEndpoint[TokenizeRequest]):
    """Replies with ids, and their texts on request."""

    def __init__(self, path: str, task: TokenizeTask, tenants: Tenants) -> None:
        super().__init__(path, task, tenants)
        self._tokenize = task

    async def answer(
        self,
        caller: Caller,
        reply: ReplyWriter,
        request: TokenizeRequest,
        served: ServedModel,
        cost: int,
    ) -> None:
        del cost
        async with self._tokenize.run(caller, request, served) as tokenized:
            await reply.reply(
                await offload(tokenized.large, _tokens_body, tokenized, caller=caller)
            )


class DetokenizeEndpoint(TaskEndpoint[DetokenizeRequest]):
    """Replies with the text of ids."""

    def __init__(self, path: str, task: DetokenizeTask, tenants: Tenants) -> None:
        super().__init__(path, task, tenants)
        self._detokenize = task

    async def answer(
        self,
        caller: Caller,
        reply: ReplyWriter,
        request: DetokenizeRequest,
        served: ServedModel,
        cost: int,
    ) -> None:
        del cost
        async with self._detokenize.run(caller, request, served) as text:
            large = len(text) > LONG_CHARACTERS
            encode = long_json if large else json_bytes
            await reply.reply(await offload(large, encode, {"prompt": text}, caller=caller))


def _tokens_body(tokenized: Tokenized) -> bytes:
    body = {
        "count": len(tokenized.ids),
        "max_model_len": tokenized.limit,
        "tokens": tokenized.ids,
        "token_strs": tokenized.strings,
    }
    return (long_json if tokenized.large else json_bytes)(body)


Create = Callable[[str, Tasks, Tenants], TaskEndpoint[Any]]


def tokenize(path: str, tasks: Tasks, tenants: Tenants) -> TaskEndpoint[Any]:
    """Tokenize a text.

    Return the ids that a model reads for a text, in vLLM's shape.
    """
    return TokenizeEndpoint(path, tasks[TokenizeTask], tenants)


def detokenize(path: str, tasks: Tasks, tenants: Tenants) -> TaskEndpoint[Any]:
    """Turn ids into a text.

    Return the text that ids of a model's vocabulary stand for, in vLLM's shape.
    """
    return DetokenizeEndpoint(path, tasks[DetokenizeTask], tenants)


_ERRORS = (*ANY_TENANT, *BODY, ModelNotFound, WrongTask)
ROUTES: tuple[Route[Create], ...] = (
    Route(
        "POST", "/tokenize", tokenize, "tokenize", "inference", (Reply(TokenizeReply),),
        (*_ERRORS, UnfitInput), TokenizeRequest,
    ),
    Route(
        "POST", "/detokenize", detokenize, "detokenize", "inference", (Reply(DetokenizeReply),),
        _ERRORS, DetokenizeRequest,
    ),
)  # fmt: skip


def mount(tasks: Tasks, tenants: Tenants) -> list[tuple[Route[Create], TaskEndpoint[Any]]]:
    """Create the endpoints."""
    return [(route, route.handler(route.path, tasks, tenants)) for route in ROUTES]
