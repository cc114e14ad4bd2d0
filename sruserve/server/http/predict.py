"""`POST /predict`: classification as clients of text-embeddings-inference ask for it."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from sruserve.server.auth import Tenant, Tenants
from sruserve.server.errors import (
    Draining,
    EmptyInput,
    InvalidRequest,
    Refused,
    ServeError,
    UnfitInput,
)
from sruserve.server.http.call import HttpCall
from sruserve.server.http.endpoint import HttpEndpoint
from sruserve.server.http.responses import PredictError, Prediction
from sruserve.server.http.routes import ANY_TENANT, TASK, ErrorShape, Reply, Route
from sruserve.server.http.truncation import Side, cut_ids, cut_text
from sruserve.server.json_output import json_bytes, long_json
from sruserve.server.metrics.metrics import UNKNOWN_MODEL
from sruserve.server.offload import offload
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.classify import ClassifyTask
from sruserve.server.tasks.inputs import LONG_CHARACTERS, check_inputs
from sruserve.server.tasks.per_input import Results
from sruserve.server.tasks.requests import ClassifyRequest

_LEAST = np.finfo(np.float32).smallest_subnormal
_KINDS: tuple[tuple[type[ServeError], str], ...] = (
    (EmptyInput, "empty"),
    (UnfitInput, "tokenizer"),
    (InvalidRequest, "validation"),
    (Draining, "unhealthy"),
    (Refused, "overloaded"),
    (ServeError, "backend"),
)


_Inputs = str | list[str] | list[list[str]]


class PredictRequest(BaseModel):
    """One input, or a batch of them."""

    model_config = ConfigDict(strict=True, extra="forbid")

    inputs: _Inputs = Field(
        description="A text; a pair of texts, for models of task `pair`; a batch: a list of lists "
        "of one or two texts, or, for models of task `classify`, a list of texts."
    )
    raw_scores: bool = Field(False, description="Logarithms of the probabilities instead of them.")
    truncate: bool | None = Field(False, description="Cut what is too long instead of refusing it.")
    truncation_direction: Literal["Left", "Right"] = Field(
        "Right", description="The side on which it is cut."
    )

    @field_validator("inputs", mode="plain", json_schema_input_type=_Inputs)
    @classmethod
    def _is_known_shape(cls, value: object) -> object:
        entries = value if isinstance(value, list) else [value]
        texts = all(isinstance(entry, str) for entry in entries)
        if not entries or not (texts or all(map(_is_entry, entries))):
            raise ValueError("send a text, a pair of texts, or a list of lists of one or two texts")
        return value


class PredictEndpoint(HttpEndpoint):
    """Classify texts as TEI.

    The labels of a text, the likeliest first, in text-embeddings-inference's shape.

    A batch gets a list of them for each of its texts.
    """

    schema = PredictRequest

    def __init__(self, path: str, tenants: Tenants, task: ClassifyTask, whole_steps: int) -> None:
        self.path = path
        super().__init__(tenants, (UNKNOWN_MODEL,))
        self._task, self._whole_steps = task, whole_steps

    async def serve(self, call: HttpCall, tenant: Tenant) -> None:
        task = self._task
        body = await call.json_body(task.limits)
        asked = PredictRequest.model_validate_json(body)
        if isinstance(asked.inputs, list):
            check_inputs(len(asked.inputs), task.limits, "inputs")
        names = task.name, *task.other_names
        served = task.catalogue.choose(call.query("model"), *names).for_tenant(tenant)
        call.model, cost = served.name, len(body)
        served.check_admission(cost)
        with served.in_flight:
            await self._answer(call, asked, served, cost)

    async def _answer(
        self, call: HttpCall, asked: PredictRequest, served: ServedModel, cost: int
    ) -> None:
        task = self._task
        texts: Sequence[Sequence[Any]] = _entries(served, asked.inputs)
        if asked.truncate:
            texts = await self._truncated(call, served, texts, asked.truncation_direction, cost)
        request = ClassifyRequest().model_copy(
            update={
                "input": [entry[0] for entry in texts],
                "pair": [entry[1] for entry in texts] if len(texts[0]) > 1 else None,
            }
        )
        with await task.run(call, request, served, cost) as results:
            alone = _is_one(asked.inputs, texts)
            told = await offload(results.large, _tell, served, results, asked.raw_scores, alone)
            await call.reply(told)

    async def refuse(self, call: HttpCall, problem: ServeError) -> None:
        kind = next(kind for error, kind in _KINDS if isinstance(problem, error))
        body = json_bytes({"error": problem.message, "error_type": kind})
        await call.refuse_as(problem, problem.status, body)

    async def _truncated(
        self,
        call: HttpCall,
        served: ServedModel,
        texts: Sequence[Sequence[str]],
        side: Side,
        cost: int,
    ) -> Sequence[Sequence[Any]]:
        """The inputs, or their ids where a model that reads them whole reads too many."""
        most = self._task.limits.input_bytes

        def cut() -> list[list[str]]:
            return [[cut_text(text, most, side) for text in entry] for entry in texts]

        short = await offload(cost > LONG_CHARACTERS, cut, cost=cost, caller=call)
        if served.model.network.supports_streaming:
            return short
        flat = [text for entry in short for text in entry]
        ids = iter(await self._task.read_ids(call, served, flat, "inputs"))
        read = [[next(ids) for _ in entry] for entry in short]
        pairs = zip(read, short, strict=True)
        return [cut_ids(each, self._whole_steps, side) or entry for each, entry in pairs]


ROUTES: tuple[Route[type[PredictEndpoint]], ...] = (
    Route(
        "POST", "/predict", PredictEndpoint, "predict", "inference",
        (Reply(list[Prediction] | list[list[Prediction]]),),
        (*ANY_TENANT, *TASK),
        PredictRequest,
        query={"model": "Id of a served model; may be left out when there is only one."},
        error_shape=ErrorShape(PredictError),
    ),
)  # fmt: skip


def mount(
    tenants: Tenants, task: ClassifyTask, whole_steps: int
) -> list[tuple[Route[type[PredictEndpoint]], PredictEndpoint]]:
    """What answers the route. whole_steps: the longest input of a model that reads whole inputs."""
    return [(route, route.handler(route.path, tenants, task, whole_steps)) for route in ROUTES]


def _is_entry(entry: object) -> bool:
    """Whether it is a list of one or two texts."""
    return (
        isinstance(entry, list)
        and 1 <= len(entry) <= 2
        and all(isinstance(text, str) for text in entry)
    )


def _entries(served: ServedModel, inputs: _Inputs) -> list[list[str]]:
    """The texts of each input, as many as the model reads."""
    count = 2 if served.model.config.task == "pair" else 1
    if isinstance(inputs, str):
        entries = [[inputs]]
    elif count == 2 and isinstance(inputs[0], str):
        entries = [[str(text) for text in inputs]]
    else:
        entries = [[entry] if isinstance(entry, str) else entry for entry in inputs]
    if any(len(entry) != count for entry in entries):
        raise InvalidRequest(
            f"{served.name} compares two texts: send each input as [text, text]"
            if count == 2
            else f"{served.name} reads one text and compares nothing: send each input alone",
            param="inputs",
        )
    return entries


def _is_one(inputs: _Inputs, texts: Sequence[Sequence[Any]]) -> bool:
    """Whether it was one input and not a batch: a text, or a pair."""
    return isinstance(inputs, str) or (isinstance(inputs[0], str) and len(texts[0]) > 1)


def _tell(served: ServedModel, results: Results, raw: bool, alone: bool) -> bytes:
    """The reply's body."""
    told = []
    for _, result in results.results:
        order = np.argsort(-result.probabilities, kind="stable")
        # softmax has the same value for logits and for these, which lie a constant beside them
        scores = np.log(np.maximum(result.probabilities, _LEAST)) if raw else result.probabilities
        told.append([{"score": float(scores[i]), "label": served.labels[i]} for i in order])
    return (long_json if results.large else json_bytes)(told[0] if alone else told)
