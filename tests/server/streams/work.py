"""Steps of tests, and waiting for their end."""

import asyncio
from collections.abc import Callable

import numpy as np

from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Result
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.streams.service import Streams
from sruserve.server.streams.step_view import StreamView
from sruserve.server.tasks.completion_request import CompletionRequest

Run = Callable[..., None]


async def write(view: StreamView) -> bytes:
    """Three letters after the stream's own, or after a first token."""
    results: list[Result] = []
    loop = asyncio.get_running_loop()
    inputs = np.array([] if view.start else [40], dtype=np.int64)
    job = Job(
        kind=JobKind.GENERATE,
        items=[SequenceInput(inputs, view.start)],
        loop=loop,
        deliver=lambda _, result: results.append(result),
        done=loop.create_future(),
        state_output=view.state_output(CompletionRequest(model="characters", prompt="a")),
        sampling=Sampling(max_tokens=3, temperature=0),
    )
    view.submit(job)
    await job.done
    assert results[-1].state is None, "the state is the stream's"
    return repr(results).encode()


async def settled(streams: Streams) -> None:
    """Wait for what goes on without a client."""
    while streams._tasks.running:
        await asyncio.wait(set(streams._tasks.running))


async def until_rows(served: ServedModel, max_rows: int) -> None:
    """Wait until so few states are in the engine, which frees them on its own thread."""
    async with asyncio.timeout(60):
        while served.engine.rows > max_rows:
            await asyncio.sleep(0.01)
