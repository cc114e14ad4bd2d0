"""A state out of the engine that keeps it."""

import asyncio
from dataclasses import replace

import numpy as np

from sruserve.server.api.served import Served
from sruserve.server.engine.jobs import Item, Job, Keep, Kind, Result, Snapshot
from sruserve.server.engine.residents import Resident

_KINDS = {
    "classify": Kind.CLASSIFY,
    "tag": Kind.TAG,
    "encode": Kind.ENCODE,
    "generate": Kind.SCORE,
}


async def portable(served: Served, state: Snapshot) -> Snapshot:
    """The same state with a row of its own, which a token can hold."""
    if not isinstance(state.row, Resident):
        return state
    config, loop = served.model.config, asyncio.get_running_loop()
    nothing = (
        np.zeros(0, np.int64)
        if config.vocab_size is not None
        else np.zeros((0, config.rnn.input_size), np.float32)
    )
    ends: list[Result] = []
    job = Job(
        kind=_KINDS[config.task],
        items=[Item(nothing, state, state.word, more=True)],
        loop=loop,
        deliver=lambda _, result: ends.append(result),
        done=loop.create_future(),
        keep=Keep.SNAPSHOT,
        tenant=served.owner,
    )
    served.engine.submit(job)
    await job.done
    end = ends[-1].state
    assert end is not None
    return replace(state, row=end.row)
