"""Regress: named values from texts, ids or features, and forecasts that feed them back."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sruserve.model.heads.regression import Regression
from sruserve.server.auth import Spent
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Regressed
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.errors import InvalidRequest
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.caller import Caller
from sruserve.server.tasks.encode import listed
from sruserve.server.tasks.per_input import Results, compute
from sruserve.server.tasks.requests import RegressRequest
from sruserve.server.tasks.sequences import SequenceReader, sequences_of
from sruserve.server.tasks.task import Task

_INPUTS = SequenceReader()
Values = NDArray[np.float32]
_ONE_JOB = nullcontext()


class RegressTask(Task[RegressRequest, ServedModel]):
    """Predict values.

    Predict named values, or quantiles of them, after the last step or after each; with
    `steps_ahead`, also those of the future steps.
    """

    name, schema = "regress", RegressRequest
    route, prefix, streams = "regress", "reg", True

    async def run(
        self, caller: Caller, request: RegressRequest, served: ServedModel, cost: int
    ) -> Results:
        """Predict the values of a request's inputs. cost: bytes of the request, for the queue."""
        ahead, regression = request.steps_ahead, regression_of(served)
        if ahead:
            self._check_steps_ahead(request, served)
        state_output = served.state_output(request)
        with served.engine.continuing() if ahead else _ONE_JOB:
            items = await _INPUTS.read(caller, request, served, self.limits, cost)
            every = regression.steps == "every"
            rows = sum(len(item.inputs) for item in items) if every else len(items)
            computing = compute(
                caller,
                request,
                served,
                self.limits,
                cost,
                JobKind.REGRESS_STEPS if every else JobKind.REGRESS,
                items,
                state_output=state_output,
                numbers=regression.row_numbers * (rows + len(items) * ahead),
                ahead=ahead,
                run_ahead=partial(self.run_ahead, caller, request, served) if ahead else None,
            )
            del items  # `compute` drops what was read before the steps ahead
            return await computing

    def _check_steps_ahead(self, request: RegressRequest, served: ServedModel) -> None:
        """Raise if a model has no steps ahead, or a request too many in all of its inputs."""
        if not regression_of(served).forecasts:
            raise InvalidRequest(
                f"{served.name} does not predict the features of the next step: leave out "
                "'steps_ahead'",
                param="steps_ahead",
            )
        features = request.features
        count = len(sequences_of(features)) if features is not None else 1
        if count * request.steps_ahead > self.limits.new_tokens:
            raise InvalidRequest(
                f"'steps_ahead' is {request.steps_ahead} for each of {count} inputs, over the "
                f"limit of {self.limits.new_tokens} for a request; send several requests, or ask "
                "the operator to raise SRUSERVE_MAX_NEW_TOKENS",
                param="steps_ahead",
            )

    async def run_ahead(
        self,
        caller: Caller,
        request: RegressRequest,
        served: ServedModel,
        results: Sequence[Regressed],
        spent: Spent,
    ) -> list[Regressed]:
        """The results with those of the steps after the inputs. spent: counts these steps, too."""
        request.drop_read_fields()
        regression = regression_of(served)
        states: list[Snapshot] = [served.end_state(result) for result in results]
        steps = sum(result.steps for result in results)
        shape = request.steps_ahead, regression.outputs
        ahead = [np.empty(shape, np.float32) for _ in states]
        for step in range(request.steps_ahead):
            items = [
                SequenceInput(state.probabilities[regression.fed_back][None], state)
                for state in states
            ]
            steps += len(items)
            spent.used = steps
            for index, result in enumerate(await self._step(caller, request, served, items)):
                states[index] = result.state
                ahead[index][step] = result.values
        returns_state = request.return_state or request.more
        return [
            replace(result, state=result.state if returns_state else None, ahead=values)
            for result, values in zip(results, ahead, strict=True)
        ]

    async def _step(
        self,
        caller: Caller,
        request: RegressRequest,
        served: ServedModel,
        items: Sequence[SequenceInput],
    ) -> Sequence[Any]:
        """The results of one step ahead of all inputs, with copies of their states."""
        results: list[Any] = [None] * len(items)
        job = Job(
            kind=JobKind.REGRESS,
            items=items,
            loop=caller.loop,
            deliver=results.__setitem__,
            done=caller.loop.create_future(),
            state_output=StateOutput.COPY,
            tenant=served.owner,
            priority=served.tenant.priority(request.priority),
            continues=True,
            queues=False,
        )
        served.engine.submit(job)  # not by `served`: a stream's state is that after the input
        await caller.wait(job.done)
        return results

    def describe(
        self, served: ServedModel, item: SequenceInput, result: Regressed
    ) -> dict[str, Any]:
        del item
        regression, last = regression_of(served), result.values
        return {
            "values": None if last is None else _named(regression, last[None])[0],
            "steps": None if result.every is None else _named(regression, result.every),
            "ahead": None if result.ahead is None else _named(regression, result.ahead),
            "state": served.seal_state(result.state),
        }


def regression_of(served: ServedModel) -> Regression:
    """What a model of task regress predicts."""
    regression = served.model.config.regression
    assert regression is not None
    return regression


def _named(regression: Regression, values: Values) -> list[Mapping[str, Any]]:
    """The values of each row of (rows, outputs), by name."""
    rows = listed(values)
    names, quantiles = regression.names, [str(quantile) for quantile in regression.quantiles]
    if not quantiles:
        return [dict(zip(names, row, strict=True)) for row in rows]
    count = len(quantiles)
    return [
        {
            name: dict(zip(quantiles, row[i * count : (i + 1) * count], strict=True))
            for i, name in enumerate(names)
        }
        for row in rows
    ]
