"""Stop strings: inside a burst, across requests, and the state right after them."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sruserve.model.network import Network
from sruserve.server.engine.config import EngineConfig
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Generated
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.engine.settle import Settler
from sruserve.server.engine.snapshot import StateOutput
from tests.server.engine.driver import Driver, same_state
from tests.support import random_model


@pytest.mark.parametrize("length", [1, 3])
def test_a_stop_string_inside_a_burst_leaves_the_state_right_after_it(
    lm: Driver, length: int
) -> None:
    async def run() -> None:
        whole = await lm.generate("To be", 48)
        stop = whole.text[21 : 21 + length]
        at = whole.text.find(stop)
        stopped = await lm.generate("To be", 48, stop=(stop,))
        assert (stopped.text, stopped.finish_reason) == (whole.text[:at], "stop")
        assert stopped.stop_reason == stop
        rest = await lm.generate("", 48 - at - length, start=stopped.state)
        assert whole.text[:at] + stop + rest.text == whole.text
        assert same_state(rest.state, whole.state)

    asyncio.run(run())


@pytest.mark.parametrize("max_rows", [4096, 32])
def test_texts_that_end_inside_a_burst_are_taken_back_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_rows: int
) -> None:
    settled: list[list[int]] = []  # the rows of each forward pass while a step is settled
    settle, hidden = Settler.settle, Network.hidden
    settling = False

    def noted(*args: Any) -> None:
        nonlocal settling
        settling = True
        settled.append([])
        settle(*args)
        settling = False

    def counted(network: Network, inputs: torch.Tensor, *args: Any) -> torch.Tensor:
        if settling:
            settled[-1].append(len(inputs))
        return hidden(network, inputs, *args)

    monkeypatch.setattr(Settler, "settle", noted)
    monkeypatch.setattr(Network, "hidden", counted)
    stop = tuple("etaoinshr")

    async def run(lm: Driver) -> None:
        alone = [await lm.generate("To be", 48, choice=i, stop=stop) for i in range(24)]
        one_by_one = lm.counts.calls["replayed"]
        settled.clear()
        items = [SequenceInput(lm.ids("To be"), seed=7, choice=i) for i in range(24)]
        submission = lm.job(
            JobKind.GENERATE,
            items,
            sampling=Sampling(max_tokens=48, stop=stop),
            state_output=StateOutput.COPY,
        )
        for i, (made,) in (await submission.results()).items():
            assert isinstance(made, Generated)
            assert made.text == alone[i].text
            assert same_state(made.state, alone[i].state)
        passes = [rows for rows in settled if rows]
        assert 0 < 2 * sum(map(len, passes)) <= lm.counts.calls["replayed"] - one_by_one
        for rows in passes:
            assert max(rows) <= max_rows
            assert all(first + then > max_rows for first, then in pairwise(rows))
        assert lm.engine.rows == 0

    with Driver(random_model(tmp_path / "lm"), EngineConfig(max_batch_tokens=max_rows)) as lm:
        asyncio.run(run(lm))


@settings(max_examples=15)
@given(cut=st.integers(1, 47), begin=st.integers(2, 40), length=st.integers(2, 6))
def test_a_stop_string_across_two_requests_stops_as_in_one(
    lm: Driver, cut: int, begin: int, length: int
) -> None:
    async def run() -> None:
        whole = await lm.generate("To be", 48)
        stop = (whole.text[begin : begin + length],)
        expected = await lm.generate("To be", 48, stop=stop)
        first = await lm.generate("To be", cut, stop=stop)
        if first.finish_reason == "stop":
            assert first.text == expected.text
            return
        second = await lm.generate("", 48 - cut, start=first.state, stop=stop)
        assert first.text + second.text == expected.text
        assert same_state(second.state, expected.state)

    asyncio.run(run())


def test_text_held_back_precedes_what_follows_a_new_prompt(lm: Driver) -> None:
    async def run() -> None:
        made = await lm.generate("To be", 20)
        stop = (made.text[-1] + "zzz",)
        first = await lm.generate("To be", 20, stop=stop)
        assert first.state is not None
        assert (first.text, first.state.held_back) == (made.text[:-1], made.text[-1])
        second = await lm.generate("or not", 5, start=first.state, stop=("zzz",))
        assert second.text[0] == made.text[-1]
        assert len(second.text) == 6

    asyncio.run(run())
