"""`POST /v1/score`: how likely a language model finds texts."""

from collections.abc import Sequence
from math import log
from typing import Any

from sruserve.server.api.call import Call, json_bytes
from sruserve.server.api.inputs import MANY_STATES, encode_input, is_long, split_inputs
from sruserve.server.api.route import Route, off_loop, run_job
from sruserve.server.api.schemas import ScoreRequest
from sruserve.server.api.served import Served
from sruserve.server.engine.jobs import Item, Job, Kind, Scored

_LN_2 = log(2)


class ScoreRoute(Route[ScoreRequest]):
    """One result for each input, in their order."""

    path, task, schema = "/v1/score", "generate", ScoreRequest

    async def answer(self, call: Call, request: ScoreRequest, served: Served, cost: int) -> None:
        served.check_states(given=request.state is not None, wanted=request.return_state)
        inputs = split_inputs(request.input, self.limits, "input")
        items = await off_loop(is_long(inputs, request.state), self._items, request, served, inputs)
        results: list[Any] = [None] * len(items)
        job = Job(
            kind=Kind.SCORE,
            items=items,
            loop=call.loop,
            deliver=results.__setitem__,
            done=call.loop.create_future(),
            keep_state=request.return_state,
            cost=cost,
            deadline=self.deadline(),
        )
        await run_job(call, served, job)
        many_states = request.return_state and len(items) > MANY_STATES
        await call.reply(await off_loop(many_states, _encode, call.number, served, results))

    def _items(
        self, request: ScoreRequest, served: Served, inputs: Sequence[str | list[int]]
    ) -> list[Item]:
        starts = served.open_states(request.state, len(inputs))
        items = []
        for given, start in zip(inputs, starts, strict=True):
            ids, word = encode_input(served, given, start, "input")
            items.append(Item(ids, start, word))
        return items


def _encode(number: str, served: Served, results: list[Scored]) -> bytes:
    return json_bytes(
        {
            "id": f"score-{number}",
            "model": served.name,
            "results": [_result(served, result) for result in results],
            "usage": {"steps": sum(result.steps for result in results)},
        }
    )


def _result(served: Served, result: Scored) -> dict[str, Any]:
    bits = -result.log_likelihood / _LN_2
    return {
        "log_likelihood": result.log_likelihood,
        "bits_per_character": bits / result.characters if result.characters else None,
        "bits_per_token": bits / result.tokens if result.tokens else None,
        "characters": result.characters,
        "tokens": result.tokens,
        "state": served.seal_state(result.state),
    }
