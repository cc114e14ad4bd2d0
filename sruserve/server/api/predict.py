"""`POST /predict`: classification as clients of text-embeddings-inference ask for it."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from sruserve.server.api.call import Call, json_bytes
from sruserve.server.api.classify import ClassifyRoute
from sruserve.server.api.endpoint import Endpoint
from sruserve.server.api.inputs import LONG_CHARACTERS, check_inputs
from sruserve.server.api.long_json import long_json
from sruserve.server.api.requests import ClassifyRequest
from sruserve.server.api.served import Served
from sruserve.server.api.texts import Results
from sruserve.server.api.truncation import Side, cut_ids, cut_text
from sruserve.server.errors import (
    Draining,
    EmptyInput,
    InvalidRequest,
    Refused,
    ServeError,
    UnfitInput,
)
from sruserve.server.metrics import UNKNOWN_MODEL
from sruserve.server.offload import off_loop
from sruserve.server.tenants import Tenant, Tenants

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


class PredictEndpoint(Endpoint):
    """The labels of each input with their scores, the highest first.

    whole_steps: the longest input of a model that reads whole inputs.
    """

    path, schema = "/predict", PredictRequest

    def __init__(self, tenants: Tenants, route: ClassifyRoute, whole_steps: int) -> None:
        super().__init__(tenants, (UNKNOWN_MODEL,))
        self._route, self._whole_steps = route, whole_steps

    async def serve(self, call: Call, tenant: Tenant) -> None:
        route = self._route
        body = await call.json_body(route.limits)
        asked = PredictRequest.model_validate_json(body)
        if isinstance(asked.inputs, list):
            check_inputs(len(asked.inputs), route.limits, "inputs")
        tasks = route.task, *route.other_tasks
        served = route.catalogue.choose(call.query("model"), *tasks).of(tenant)
        call.model, cost = served.name, len(body)
        served.check_admission(cost)
        texts: Sequence[Sequence[Any]] = _entries(served, asked.inputs)
        if asked.truncate:
            texts = await self._truncated(call, served, texts, asked.truncation_direction, cost)
        request = ClassifyRequest().model_copy(
            update={
                "input": [entry[0] for entry in texts],
                "pair": [entry[1] for entry in texts] if len(texts[0]) > 1 else None,
            }
        )
        async with route.computed(call, request, served, cost) as results:
            alone = _is_one(asked.inputs, texts)
            told = await off_loop(results.much, _tell, served, results, asked.raw_scores, alone)
            await call.reply(told)

    async def refuse(self, call: Call, problem: ServeError) -> None:
        kind = next(kind for error, kind in _KINDS if isinstance(problem, error))
        body = json_bytes({"error": problem.message, "error_type": kind})
        await call.refuse_as(problem, problem.status, body)

    async def _truncated(
        self, call: Call, served: Served, texts: Sequence[Sequence[str]], side: Side, cost: int
    ) -> Sequence[Sequence[Any]]:
        """The inputs, or their ids where a model that reads them whole reads too many."""
        most = self._route.limits.input_bytes

        def cut() -> list[list[str]]:
            return [[cut_text(text, most, side) for text in entry] for entry in texts]

        short = await off_loop(cost > LONG_CHARACTERS, cut, cost=cost, caller=call)
        if served.model.network.streams:
            return short
        flat = [text for entry in short for text in entry]
        ids = iter(await self._route.read_ids(call, served, flat, "inputs"))
        read = [[next(ids) for _ in entry] for entry in short]
        pairs = zip(read, short, strict=True)
        return [cut_ids(each, self._whole_steps, side) or entry for each, entry in pairs]


def _is_entry(entry: object) -> bool:
    """Whether it is a list of one or two texts."""
    return (
        isinstance(entry, list)
        and 1 <= len(entry) <= 2
        and all(isinstance(text, str) for text in entry)
    )


def _entries(served: Served, inputs: _Inputs) -> list[list[str]]:
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


def _tell(served: Served, results: Results, raw: bool, alone: bool) -> bytes:
    """The reply's body."""
    told = []
    for _, result in results.told:
        order = np.argsort(-result.probabilities, kind="stable")
        # softmax has the same value for logits and for these, which lie a constant beside them
        scores = np.log(np.maximum(result.probabilities, _LEAST)) if raw else result.probabilities
        told.append([{"score": float(scores[i]), "label": served.labels[i]} for i in order])
    return (long_json if results.much else json_bytes)(told[0] if alone else told)
