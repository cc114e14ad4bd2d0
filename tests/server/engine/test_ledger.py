"""What bursts add to texts is entered by columns, and is each text's own once it takes it over."""

import asyncio
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.job import Job
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.job_sequences import sequences_of
from sruserve.server.engine.ledger import Ledger
from sruserve.server.engine.sequence import ActiveSequence
from sruserve.server.engine.sequence_input import SequenceInput

STEPS = 4


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def texts(
    loop: asyncio.AbstractEventLoop, count: int, stream: bool = False, **sampling: Any
) -> list[ActiveSequence]:
    """Texts without a codec; the state of text i is in row i."""
    items = [SequenceInput(np.array([1])) for _ in range(count)]
    job = Job(
        JobKind.GENERATE, items, loop, lambda *_: None, loop.create_future(),
        stream=stream, sampling=Sampling(max_tokens=1000, **sampling),
    )  # fmt: skip
    sequences = sequences_of(job, None)
    for row, sequence in enumerate(sequences):
        sequence.row = row
    return sequences


def enter(ledger: Ledger, slots: list[int], counts: list[int], first_row: int) -> list[int]:
    """Enter a burst in which slot s gets the tokens 100 s, 100 s + 1, ..., and a fresh row."""
    tokens = np.arange(STEPS)[:, None] + 100 * np.arange(len(ledger.has_line))
    rows = first_row + np.arange(len(slots))
    return ledger.enter(np.array(slots), np.array(counts), rows, tokens)


def due(ledger: Ledger, *full: int, now: float = 0.0) -> list[tuple[ActiveSequence, bool, bool]]:
    is_full = np.isin(np.arange(len(ledger.has_line)), full)
    return ledger.due(is_full, now, 1.0)


def tokens_of(sequence: ActiveSequence) -> list[int]:
    return list(sequence.take_text(0.0).tokens)


def test_a_text_gets_its_row_and_its_own_tokens_of_each_burst(
    loop: asyncio.AbstractEventLoop,
) -> None:
    ledger, (first, second, third) = Ledger(STEPS), texts(loop, 3)
    ledger.admit([first, second, third])
    assert enter(ledger, [0, 1, 2], [4, 4, 4], 10) == [0, 1, 2]
    assert enter(ledger, [0, 2], [4, 2], 20) == [10, 12]
    assert enter(ledger, [0, 1], [1, 4], 30) == [20, 11]
    assert (first.row, first.generated) == (0, 0)
    ledger.close_all()
    assert [each.row for each in (first, second, third)] == [30, 31, 21]
    assert [each.generated for each in (first, second, third)] == [9, 8, 6]
    assert [each.pending for each in (first, second, third)] == [0, 103, 201]
    assert tokens_of(first) == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert tokens_of(second) == [100, 101, 102, 103] * 2
    assert tokens_of(third) == [200, 201, 202, 203, 200, 201]


def test_a_text_that_is_full_is_read_once_and_loses_its_line(
    loop: asyncio.AbstractEventLoop,
) -> None:
    ledger, sequences = Ledger(STEPS), texts(loop, 3)
    ledger.admit(sequences)
    enter(ledger, [0, 1, 2], [4, 3, 4], 10)
    assert due(ledger, 1) == [(sequences[1], True, False)]
    assert (sequences[1].row, sequences[1].generated) == (11, 3)
    assert ledger.has_line.tolist() == [True, False, True]
    assert due(ledger, 1) == []
    ledger.close(1)
    assert sequences[1].generated == 3


def test_texts_whose_ends_the_host_looks_for_have_no_line(
    loop: asyncio.AbstractEventLoop,
) -> None:
    ledger = Ledger(STEPS)
    ledger.admit([*texts(loop, 1), *texts(loop, 1, stop=("a",)), *texts(loop, 1, logprobs=1)])
    assert ledger.has_line.tolist() == [True, False, False]


def test_a_streamed_text_is_sent_after_an_interval(loop: asyncio.AbstractEventLoop) -> None:
    ledger, sequences = Ledger(STEPS), [*texts(loop, 1), *texts(loop, 1, stream=True)]
    ledger.admit(sequences)
    assert due(ledger, now=0.5) == []
    enter(ledger, [0, 1], [4, 4], 10)
    assert due(ledger, now=1.5) == [(sequences[1], False, True)]
    assert sequences[1].generated == 4
    enter(ledger, [0, 1], [4, 4], 20)
    assert due(ledger, now=2.0) == []
    assert due(ledger, now=2.5) == [(sequences[1], False, True)]
    assert due(ledger, now=9.0) == [], "a burst of others brings nothing to send"


def test_all_texts_are_read_before_a_line_has_no_room(loop: asyncio.AbstractEventLoop) -> None:
    ledger, sequences = Ledger(STEPS), texts(loop, 2)
    ledger.admit(sequences)
    read = []
    for burst in range(64):
        enter(ledger, [0, 1], [STEPS, STEPS - burst % 2], 10 + 2 * burst)
        read.append(len(due(ledger)))
    ledger.close_all()
    assert read.count(2) == 4
    assert set(read) == {0, 2}
    assert tokens_of(sequences[0]) == [0, 1, 2, 3] * 64
    assert tokens_of(sequences[1]) == [*[100, 101, 102, 103], *[100, 101, 102]] * 32


def test_a_burst_takes_as_many_calls_for_a_thousand_texts_as_for_four(
    loop: asyncio.AbstractEventLoop,
) -> None:
    def calls(count: int) -> int:
        ledger, made = Ledger(STEPS), 0
        ledger.admit(texts(loop, count))
        every, counts = list(range(count)), [STEPS] * count

        def see(frame: FrameType, event: str, argument: Any) -> None:
            nonlocal made
            made += event in ("call", "c_call")

        sys.setprofile(see)
        try:
            enter(ledger, every, counts, count)
            assert due(ledger) == []
        finally:
            sys.setprofile(None)
        return made

    assert calls(1000) == calls(4)
