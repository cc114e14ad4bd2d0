"""Export a state from its engine."""

import asyncio
from dataclasses import replace

import numpy as np

from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Result
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.snapshot import Snapshot, StateOutput
from sruserve.server.engine.state_cache.cache import CachedState
from sruserve.server.repository.served_model import ServedModel


async def export_state(served: ServedModel, state: Snapshot) -> Snapshot:
    """A copy of a state with its own row, for a token."""
    if not isinstance(state.row, CachedState):
        return state
    config, loop = served.model.config, asyncio.get_running_loop()
    no_inputs = (
        np.zeros(0, np.int64)
        if config.vocab_size is not None
        else np.zeros((0, config.width), np.float32)
    )
    ends: list[Result] = []
    job = Job(
        kind=JobKind.reading(config.task),
        items=[SequenceInput(no_inputs, state, state.word, more=True)],
        loop=loop,
        deliver=lambda _, result: ends.append(result),
        done=loop.create_future(),
        state_output=StateOutput.COPY,
        tenant=served.owner,
    )
    served.engine.submit(job)
    await job.done
    end = ends[-1].state
    assert end is not None
    return replace(state, row=end.row)
