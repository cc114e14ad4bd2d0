"""`POST /predict`: classification for clients of text-embeddings-inference (TEI)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

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
from sruserve.server.http.error_mapping import status_of
from sruserve.server.http.predict_messages import Inputs, PredictError, Prediction, PredictRequest
from sruserve.server.http.routes import ANY_TENANT, TASK, ErrorShape, Reply, Route
from sruserve.server.http.truncation import Side, cut_ids, cut_text
from sruserve.server.json_output import json_bytes, long_json
from sruserve.server.metrics.metrics import UNKNOWN_MODEL
from sruserve.server.offload import LONG_CHARACTERS, offload
from sruserve.server.repository.served_model import ServedModel, with_states
from sruserve.server.tasks.classify import ClassifyTask
from sruserve.server.tasks.inputs import check_inputs
from sruserve.server.tasks.per_input import Results
from sruserve.server.tasks.requests import MODEL, ClassifyRequest

_ERROR_TYPES: tuple[tuple[type[ServeError], str], ...] = (
    (EmptyInput, "empty"),
    (UnfitInput, "tokenizer"),
    (InvalidRequest, "validation"),
    (Draining, "unhealthy"),
    (Refused, "overloaded"),
    (ServeError, "backend"),
)


class PredictEndpoint(HttpEndpoint):
    """Classify texts for clients of TEI.

    Return the labels of a text, the most probable first, in the shape of text-embeddings-inference.

    For a batch, return a list of labels for each input.
    """

    schema = PredictRequest

    def __init__(self, path: str, tenants: Tenants, task: ClassifyTask, whole_steps: int) -> None:
        self.path = path
        super().__init__(tenants, (UNKNOWN_MODEL,))
        self._task, self._whole_steps = task, whole_steps

    async def serve(self, call: HttpCall, tenant: Tenant) -> None:
        task = self._task
        body = await call.json_body(task.limits)
        request = PredictRequest.model_validate_json(body)
        if isinstance(request.inputs, list):
            check_inputs(len(request.inputs), task.limits, "inputs")
        names = task.name, *task.other_names
        chosen = task.catalogue.choose(call.query("model"), *names)
        served = with_states(chosen).for_tenant(tenant)
        call.model, cost = served.name, len(body)
        served.check_admission(cost)
        with served.in_flight:
            await self._answer(call, request, served, cost)

    async def _answer(
        self, call: HttpCall, request: PredictRequest, served: ServedModel, cost: int
    ) -> None:
        task = self._task
        texts: Sequence[Sequence[Any]] = _entries(served, request.inputs)
        if request.truncate:
            texts = await self._truncated(call, served, texts, request.truncation_direction, cost)
        task_request = ClassifyRequest().model_copy(
            update={
                "input": [entry[0] for entry in texts],
                "pair": [entry[1] for entry in texts] if len(texts[0]) > 1 else None,
                "raw_scores": request.raw_scores,
            }
        )
        with await task.run(call, task_request, served, cost) as results:
            single = _is_single(request.inputs, texts)
            body = await offload(results.large, _reply_body, served, results, single)
            await call.reply(body)

    async def refuse(self, call: HttpCall, problem: ServeError) -> None:
        error_type = next(name for error, name in _ERROR_TYPES if isinstance(problem, error))
        body = json_bytes({"error": problem.message, "error_type": error_type})
        await call.refuse_as(problem, status_of(type(problem)), body)

    async def _truncated(
        self,
        call: HttpCall,
        served: ServedModel,
        texts: Sequence[Sequence[str]],
        side: Side,
        cost: int,
    ) -> Sequence[Sequence[Any]]:
        """The cut inputs, as ids where a model without streaming would read too many steps."""
        max_bytes = self._task.limits.input_bytes

        def cut() -> list[list[str]]:
            return [[cut_text(text, max_bytes, side) for text in entry] for entry in texts]

        entries = await offload(cost > LONG_CHARACTERS, cut, cost=cost, caller=call)
        if served.model.network.supports_streaming:
            return entries
        flat = [text for entry in entries for text in entry]
        ids = iter(await self._task.read_ids(call, served, flat, "inputs"))
        entry_ids = [[next(ids) for _ in entry] for entry in entries]
        pairs = zip(entry_ids, entries, strict=True)
        return [cut_ids(ids, self._whole_steps, side) or entry for ids, entry in pairs]


ROUTES: tuple[Route[type[PredictEndpoint]], ...] = (
    Route(
        "POST", "/predict", PredictEndpoint, "predict", "inference",
        (Reply(list[Prediction] | list[list[Prediction]]),),
        (*ANY_TENANT, *TASK),
        PredictRequest,
        query={"model": MODEL},
        error_shape=ErrorShape(PredictError),
    ),
)  # fmt: skip


def mount(
    tenants: Tenants, task: ClassifyTask, whole_steps: int
) -> list[tuple[Route[type[PredictEndpoint]], PredictEndpoint]]:
    """What answers the route. whole_steps: the longest input of a model that reads whole inputs."""
    return [(route, route.handler(route.path, tenants, task, whole_steps)) for route in ROUTES]


def _entries(served: ServedModel, inputs: Inputs) -> list[list[str]]:
    """The texts of each input: two for models of task `pair`, else one."""
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
            else f"{served.name} reads one text at a time: send each input as one text",
            param="inputs",
        )
    return entries


def _is_single(inputs: Inputs, texts: Sequence[Sequence[Any]]) -> bool:
    """Whether the request has one input, a text or a pair, and not a batch."""
    return isinstance(inputs, str) or (isinstance(inputs[0], str) and len(texts[0]) > 1)


def _reply_body(served: ServedModel, results: Results, single: bool) -> bytes:
    """The body of the reply."""
    predictions = []
    for _, result in results.results:
        scores = result.probabilities
        order = np.argsort(-scores, kind="stable")
        predictions.append([{"score": float(scores[i]), "label": served.labels[i]} for i in order])
    return (long_json if results.large else json_bytes)(predictions[0] if single else predictions)
