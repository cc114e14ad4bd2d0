"""Turns of whole jobs: a small job waits for one step, and no job waits for ever."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.scheduling.job_turns import JobTurns
from sruserve.server.engine.sequence_input import SequenceInput

ROWS = 100  # of a step


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def job_of(loop: asyncio.AbstractEventLoop, rows: int) -> Job:
    items = [SequenceInput(np.zeros(rows, np.int64))]
    return Job(JobKind.CLASSIFY, items, loop, lambda *_: None, loop.create_future())


@given(came=st.lists(st.lists(st.integers(6, ROWS), max_size=5), min_size=1, max_size=30))
def test_a_small_job_waits_for_one_step_under_any_load(
    loop: asyncio.AbstractEventLoop, came: list[list[int]]
) -> None:
    turns, left = JobTurns(), list[Job]()
    small: dict[Job, int] = {}
    for step, lengths in enumerate([*came, [], []]):
        newest = job_of(loop, 5)
        small[newest] = step
        waiting = [*left, *(job_of(loop, rows) for rows in lengths), newest]
        chosen, left = turns.choose(waiting, ROWS)
        assert sum(job.inputs for job in chosen) <= ROWS
        assert {*chosen, *left} == {*waiting}
        assert left == [job for job in waiting if job in left]
        for job in {*chosen} & {*small}:
            assert step <= small.pop(job) + 1
        assert all(step <= first for first in small.values())


@given(before=st.lists(st.integers(1, ROWS), max_size=10), rows=st.integers(1, ROWS))
def test_no_job_waits_for_ever_after_smaller_ones_that_keep_arriving(
    loop: asyncio.AbstractEventLoop, before: list[int], rows: int
) -> None:
    turns, large = JobTurns(), job_of(loop, rows)
    left = [*(job_of(loop, each) for each in before), large]
    for _ in range(2 * len(left)):
        chosen, left = turns.choose([*left, *(job_of(loop, 1) for _ in range(ROWS))], ROWS)
        if large in chosen:
            return
    pytest.fail("the large job still waits")
