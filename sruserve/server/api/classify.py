"""`POST /v1/classify`: label texts, or the next chunks of them."""

from collections.abc import Sequence
from typing import Any

from sruserve.server.api.call import Call, json_bytes
from sruserve.server.api.inputs import (
    MANY_STATES,
    encode_features,
    encode_input,
    is_long,
    split_inputs,
)
from sruserve.server.api.route import Route, off_loop, run_job
from sruserve.server.api.schemas import ClassifyRequest
from sruserve.server.api.served import Served
from sruserve.server.engine.jobs import Classified, Item, Job, Kind
from sruserve.server.errors import EmptyInput, InputTooLong, InvalidRequest


class ClassifyRoute(Route[ClassifyRequest]):
    """One result for each input, in their order."""

    path, task, schema = "/v1/classify", "classify", ClassifyRequest

    async def answer(self, call: Call, request: ClassifyRequest, served: Served, cost: int) -> None:
        keep_state = request.return_state or request.more
        served.check_states(given=request.state is not None, wanted=keep_state)
        if request.features is not None:
            items = self._feature_items(request, served)
        elif request.input is not None:
            inputs = split_inputs(request.input, self.limits, "input")
            items = await off_loop(
                is_long(inputs, request.state), self._items, request, served, inputs
            )
        else:
            raise InvalidRequest("'input' is missing: send a text", param="input")
        results: list[Any] = [None] * len(items)
        job = Job(
            kind=Kind.CLASSIFY,
            items=items,
            loop=call.loop,
            deliver=results.__setitem__,
            done=call.loop.create_future(),
            keep_state=keep_state,
            cost=cost,
            deadline=self.deadline(),
        )
        await run_job(call, served, job)
        many_states = keep_state and len(items) > MANY_STATES
        await call.reply(await off_loop(many_states, _encode, call.number, served, results))

    def _items(
        self, request: ClassifyRequest, served: Served, inputs: Sequence[str | list[int]]
    ) -> list[Item]:
        starts = served.open_states(request.state, len(inputs))
        items = []
        for given, start in zip(inputs, starts, strict=True):
            ids, word = encode_input(served, given, start, "input", request.more)
            items.append(Item(ids, start, word))
        return items

    def _feature_items(self, request: ClassifyRequest, served: Served) -> list[Item]:
        assert request.features is not None
        if request.input is not None:
            raise InvalidRequest("send either 'input' or 'features'", param="features")
        if len(request.features) > self.limits.input_bytes:
            raise InputTooLong("'features' has too many steps; send chunks", param="features")
        (start,) = served.open_states(request.state, 1)
        if not request.features and start is None:
            raise EmptyInput("'features' has no step; send at least one", param="features")
        return [Item(encode_features(served, request.features), start)]


def _encode(number: str, served: Served, results: list[Classified]) -> bytes:
    return json_bytes(
        {
            "id": f"cls-{number}",
            "model": served.name,
            "results": [_result(served, result) for result in results],
            "usage": {"steps": sum(result.steps for result in results)},
        }
    )


def _result(served: Served, result: Classified) -> dict[str, Any]:
    state = served.seal_state(result.state)
    if result.probabilities is None:
        return {"label": None, "score": None, "scores": None, "state": state}
    scores = result.probabilities.tolist()
    best = scores.index(max(scores))
    return {
        "label": served.labels[best],
        "score": scores[best],
        "scores": dict(zip(served.labels, scores, strict=True)),
        "state": state,
    }
