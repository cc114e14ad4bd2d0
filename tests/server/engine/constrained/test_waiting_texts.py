"""Texts whose grammar has not answered wait, beside an engine that goes on."""

import os
import signal
import socket
import time
from functools import partial

import numpy as np
import pytest

from sruserve.server.engine.constrained.memory_budget import GrammarMemory
from sruserve.server.engine.constrained.process_client import Bounds, GrammarProcess
from sruserve.server.engine.constrained.process_host import GrammarHost
from sruserve.server.engine.constrained.remote_state import RemoteConstraint
from sruserve.server.engine.constrained.wire import (
    Position,
    error_reply,
    frame,
    ok_reply,
    pack_position,
)
from sruserve.server.engine.decoding_parameters import Sampling
from sruserve.server.engine.job_kind import JobKind
from sruserve.server.engine.results import Generated
from sruserve.server.engine.sequence_input import SequenceInput
from sruserve.server.errors import (
    ConstraintUnsatisfiable,
    InvalidRequest,
    ServeError,
    StateTampered,
)
from tests.server.engine.constrained.grammar_processes import ALL, Grammars, count_polls, run
from tests.server.engine.driver import Driver, Submission

NO_OPTIONS, FUEL = np.zeros(256, np.bool_), ConstraintUnsatisfiable("it takes too much fuel")


def test_texts_that_wait_for_one_process_take_one_poll_of_each_turn(
    lm: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, texts = lm.engine, 12
    ours, theirs = socket.socketpair()
    process = GrammarProcess(GrammarHost(), ours, GrammarMemory(1 << 30), Bounds())
    sampling = Sampling(constraint=RemoteConstraint(b"x" * 16, process, ALL))
    position = frame(ok_reply(pack_position(Position(True, 0, ~NO_OPTIONS))))

    async def turns(submission: list[Submission]) -> None:
        with monkeypatch.context() as patch:
            polls = count_polls(patch, lambda: engine.turns)
            await lm.until(lambda: len(polls) > 20)
        del polls[min(polls)], polls[max(polls)]
        assert set(polls.values()) == {1}, len(submission)

    async def wait() -> None:
        items = [SequenceInput(lm.ids("Hello"))] * 3
        submission = [
            lm.job(JobKind.GENERATE, items, sampling=sampling) for _ in range(texts // len(items))
        ]
        await lm.until(lambda: len(process._unanswered) == texts)
        await turns(submission)  # none has begun
        theirs.sendall(position * texts)
        await lm.until(lambda: len(process._unanswered) == texts and bool(engine._scheduler._late))
        await turns(submission)  # none has its first token
        theirs.sendall(position * texts)
        await lm.until(lambda: len(process._unanswered) == texts and not engine._scheduler._late)
        await turns(submission)  # none has its second token
        for each in submission:
            each.job.done.cancel()
        await lm.until(lambda: not engine.busy)

    with theirs:
        run(wait())


def test_a_text_whose_grammar_is_slow_is_left_out_of_steps_and_says_the_same(
    lm: Driver, grammars: Grammars
) -> None:
    def text_of(submission: Submission) -> str:
        return "".join(
            piece.text for piece in submission.by_item[0] if isinstance(piece, Generated)
        )

    def has_generated(submission: Submission, characters: int) -> bool:
        return len(text_of(submission)) >= characters

    async def both() -> None:
        constraint = await grammars.make("regex", "[a-z]{60}")
        item = SequenceInput(lm.ids("Hello"), seed=7)
        sampling = Sampling(max_tokens=50, constraint=constraint)
        alone = await lm.generate("Hello", 50, constraint=constraint)
        for tokens in (0, 1, 20):  # before it begins, with its first one, and within a burst
            slow = lm.job(JobKind.GENERATE, [item], sampling=sampling, stream=True)
            await lm.until(partial(has_generated, slow, tokens))
            os.kill(constraint.process.pid, signal.SIGSTOP)
            for _ in range(3):  # others go on
                assert (await lm.generate("Hello", 100)).tokens
            os.kill(constraint.process.pid, signal.SIGCONT)
            await slow.results()
            assert text_of(slow) == alone.text

    run(both())


@pytest.mark.parametrize("ends", ["fails", "leaves"])
def test_an_engine_forgets_a_text_that_ends_before_it_begins(
    lm: Driver, grammars: Grammars, ends: str
) -> None:
    beginning = lm.engine._scheduler._beginning

    async def end() -> None:
        constraint = await grammars.make("regex", "a{60}")
        os.kill(constraint.process.pid, signal.SIGSTOP)
        sampling = Sampling(constraint=constraint)
        submission = lm.job(JobKind.GENERATE, [SequenceInput(lm.ids("Hello"))], sampling=sampling)
        await lm.until(lambda: bool(beginning))
        if ends == "leaves":
            submission.job.done.cancel()
        os.kill(constraint.process.pid, signal.SIGKILL)
        if ends == "fails":
            with pytest.raises(ServeError):
                await submission.results()
        await lm.until(lambda: not beginning)
        await lm.until(lambda: not lm.engine.busy)

    run(end())


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (error_reply(StateTampered("no match begins so")), StateTampered),
        (ok_reply(pack_position(Position(True, 0, NO_OPTIONS, FUEL))), ConstraintUnsatisfiable),
        (None, InvalidRequest),
    ],
    ids=["refused", "a problem", "ended"],
)
def test_a_text_that_cannot_begin_is_refused_in_any_order_of_reads(
    lm: Driver, reply: bytes | None, expected: type[ServeError]
) -> None:
    scheduler = lm.engine._scheduler
    ours, theirs = socket.socketpair()
    process = GrammarProcess(GrammarHost(), ours, GrammarMemory(1 << 30), Bounds())
    sampling = Sampling(constraint=RemoteConstraint(b"x" * 16, process, ALL))

    async def both() -> None:
        endless = lm.job(
            JobKind.GENERATE,
            [SequenceInput(lm.ids("Hello"))],
            sampling=Sampling(max_tokens=10**6),
            stream=True,
        )
        refused = lm.job(JobKind.GENERATE, [SequenceInput(lm.ids("Hello"))], sampling=sampling)
        await lm.until(lambda: bool(scheduler._beginning))
        if reply is None:
            theirs.close()
        else:
            theirs.sendall(frame(reply))
        with pytest.raises(expected):
            await refused.results()
        endless.job.done.cancel()

    with theirs:
        run(both())


@pytest.mark.parametrize("ends", [False, True])
def test_a_text_that_cannot_begin_says_so_again_and_again(ends: bool) -> None:
    ours, theirs = socket.socketpair()
    process = GrammarProcess(GrammarHost(), ours, GrammarMemory(1 << 30), Bounds())
    position = RemoteConstraint(b"x" * 16, process, ALL).begin(b"abc")
    assert not position.ready(time.monotonic())
    with theirs:
        if not ends:
            theirs.sendall(frame(error_reply(StateTampered("no match begins so"))))
    for _ in range(2):
        assert position.ready(time.monotonic())
        assert isinstance(position.problem, InvalidRequest if ends else StateTampered)


@pytest.mark.parametrize("accepted", [0, 1])
def test_an_idle_engine_holds_no_text_of_a_job_that_failed(lm: Driver, accepted: int) -> None:
    """Else the text's grammar would count as in use until the next request."""
    scheduler = lm.engine._scheduler
    ours, theirs = socket.socketpair()
    process = GrammarProcess(GrammarHost(), ours, GrammarMemory(1 << 30), Bounds())
    sampling = Sampling(constraint=RemoteConstraint(b"x" * 16, process, ALL))
    position = frame(ok_reply(pack_position(Position(True, 0, ~NO_OPTIONS))))
    problem = frame(ok_reply(pack_position(Position(True, 0, NO_OPTIONS, FUEL))))

    async def fail() -> None:
        items = [SequenceInput(lm.ids("Hello"))] * 2
        submission = lm.job(JobKind.GENERATE, items, sampling=sampling)
        await lm.until(lambda: bool(scheduler._beginning))
        await lm.until(lambda: len(process._unanswered) == 2)
        theirs.sendall(position * 2)
        await lm.until(lambda: len(scheduler._late) == 2)
        if accepted:
            theirs.sendall(position * 2)
            await lm.until(lambda: len(scheduler._unready) == 2)
        theirs.sendall(problem)
        with pytest.raises(ConstraintUnsatisfiable):
            await submission.results()
        await lm.until(lambda: not lm.engine.busy)

    with theirs:
        run(fail())
    assert not scheduler._late
    assert not scheduler._unready


def test_texts_that_begin_equally_are_read_once(
    lm: Driver, grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins: list[bytes] = []
    begin = GrammarProcess.begin

    def noted(process: GrammarProcess, number: int, spelled: bytes) -> None:
        begins.append(spelled)
        begin(process, number, spelled)

    async def texts() -> None:
        constraint = await grammars.make("regex", "[a-z]{60}")
        state = (await lm.generate("Hello", 20, constraint=constraint)).state
        sampling = Sampling(max_tokens=40, constraint=constraint)
        items = [SequenceInput(lm.ids(""), state, seed=7, choice=choice) for choice in range(3)]
        alone = [
            await lm.job(JobKind.GENERATE, [item], sampling=sampling).results() for item in items
        ]
        begins.clear()
        together = await lm.job(JobKind.GENERATE, items, sampling=sampling).results()
        assert [together[choice] for choice in range(3)] == [one[0] for one in alone]
        assert len(begins) == 1

    monkeypatch.setattr(GrammarProcess, "begin", noted)
    run(texts())
