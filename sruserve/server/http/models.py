"""The routes that describe the models, encoded once for all clients."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from pydantic import BaseModel, Field

from sruserve.server.errors import ModelNotFound, NoProcess
from sruserve.server.http.call import HttpCall
from sruserve.server.http.observed import answering_errors
from sruserve.server.http.routes import ANY_TENANT, Mounted, Reply, Route
from sruserve.server.json_output import long_json
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.offload import LONG_BYTES, POOL
from sruserve.server.repository.served import Served
from sruserve.server.repository.served_model import ServedModel


class OutputInfo(BaseModel):
    """A value that a model predicts."""

    name: str = Field(description="Name of the value.")
    unit: str = Field(description="Its unit; empty if none is known.")
    quantiles: list[float] = Field(
        description="Quantiles that are predicted; empty: the value itself."
    )


class ModelInfo(BaseModel):
    """A served model, or an older version of it."""

    id: str = Field(
        description="Id for the field `model` of requests: the name of the model, or "
        "`NAME@VERSION` of a version."
    )
    object: str = Field("model", description="Always `model`.")
    created: int = Field(description="When the server started, in seconds since 1970.")
    owned_by: str = Field("sruserve", description="Always `sruserve`.")
    version: str = Field(description="Number of the version folder; 1 if there are no versions.")
    task: str = Field(
        description="Task of the model: `classify`, `pair`, `tag`, `regress`, `answer`, `encode`, "
        "`generate` or `translate`."
    )
    description: str = Field(
        description="What the model does, as `config.json` says; plain text of at most 300 "
        "characters, empty without one."
    )
    digest: str = Field(
        description="SHA-256 of its weights, maths and vocabulary; states are bound to it."
    )
    dtype: str = Field(description="Compute dtype: `float32`, `bfloat16` or `float16`.")
    streams: bool = Field(
        description="Whether an input may arrive in chunks, each of which continues the state of "
        "the one before; for task `translate`, with `wait_k`."
    )
    state_bytes: int = Field(
        description="Bytes of one stream's state; with a CRF, at most; 0 for task `translate`, "
        "whose states grow with their texts."
    )
    presets: list[str] = Field(description="Names that `preset` accepts.")
    labels: list[str] = Field(
        description="Names of its classes, in the order of their ids; empty without classes."
    )
    outputs: list[OutputInfo] = Field(
        description="The values of a model of task `regress`, in order; else empty."
    )
    vocab_size: int | None = Field(
        description="Number of its token ids; null for a model that takes features."
    )


class ModelList(BaseModel):
    object: str = Field("list", description="Always `list`.")
    data: list[ModelInfo] = Field(description="The served models.")


class ModelPages:
    """The list of the models and the description of each, as JSON.

    A description repeats all labels, so it may have megabytes. Each is encoded on a thread when a
    client first asks for it after a change of the models. All replies then share its bytes, however
    slowly their clients read.
    """

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._edition = object()  # that of the catalogue which the pages describe
        self._pages: dict[str | None, asyncio.Task[bytes]] = {}

    async def list_models(self, call: HttpCall) -> None:
        """List the models."""
        self._lifecycle.tenants.authenticate(call.authorization).admit()
        await call.reply(await self._read(None))

    async def describe_model(self, call: HttpCall) -> None:
        """Describe a model."""
        self._lifecycle.tenants.authenticate(call.authorization).admit()
        (name,) = call.path_values
        await call.reply(await self._read(name))

    async def _read(self, name: str | None) -> bytes:
        """A model's description; None: the list. Raises `ModelNotFound` or `NoProcess`."""
        edition = self._lifecycle.catalogue.edition
        if self._edition is not edition:
            self._edition, self._pages = edition, {}
        page = self._pages.get(name)
        if page is None:
            encoding = _encode(self._pages, name, self._content(name))
            page = self._pages[name] = asyncio.create_task(encoding)
        return page.result() if page.done() else await asyncio.shield(page)

    def _content(self, name: str | None) -> dict[str, Any]:
        catalogue, started_at = self._lifecycle.catalogue, self._lifecycle.started_at
        if name is not None:
            return _describe(name, catalogue[name], started_at)
        data = [_describe(*each, started_at) for each in catalogue.listed()]
        return {"object": "list", "data": data}


async def _encode(pages: dict[str | None, Any], name: str | None, content: object) -> bytes:
    """A page's bytes. They are nobody's work, so they have no owner whose work they wait for."""
    try:
        return await POOL.run(partial(long_json, content), LONG_BYTES)
    except BaseException:
        del pages[name]  # the next request tries again
        raise


def _describe(model_id: str, served: Served, started_at: int) -> dict[str, Any]:
    """A `ModelInfo`, whose validation would take as long as its encoding."""
    model = served.model
    return {
        "id": model_id,
        "object": "model",
        "created": started_at,
        "owned_by": "sruserve",
        "version": served.version,
        "task": served.task,
        "description": model.config.description or "",
        "digest": model.digest,
        "dtype": model.dtype,
        "streams": served.has_states,
        "state_bytes": served.state_bytes,
        "presets": list(served.presets),
        "labels": list(served.labels),
        "outputs": _outputs(served),
        "vocab_size": served.vocab_size,
    }


def _outputs(served: Served) -> list[dict[str, Any]]:
    """A regressor's values with their units, each an `OutputInfo`."""
    regression = served.model.config.regression if isinstance(served, ServedModel) else None
    if regression is None:
        return []
    units = regression.units or ("",) * len(regression.names)
    pairs = zip(regression.names, units, strict=True)
    quantiles = list(regression.quantiles)
    return [{"name": name, "unit": unit, "quantiles": quantiles} for name, unit in pairs]


Answer = Callable[[ModelPages, HttpCall], Awaitable[None]]
_TAG = "models"

ROUTES: tuple[Route[Answer], ...] = (
    Route(
        "GET", "/v1/models", ModelPages.list_models, "list_models", _TAG,
        (Reply(ModelList),), (*ANY_TENANT, NoProcess),
    ),
    Route(
        "GET", "/v1/models/{model}", ModelPages.describe_model, "describe_model", _TAG,
        (Reply(ModelInfo),), (*ANY_TENANT, ModelNotFound, NoProcess),
    ),
)  # fmt: skip


def mount(pages: ModelPages) -> list[Mounted]:
    """The handlers of all routes."""
    return [
        (route, answering_errors(partial(route.handler, pages), route.path)) for route in ROUTES
    ]
