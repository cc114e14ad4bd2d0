"""The server's end of a grammar's process: what it waits for, and when it ends."""

import asyncio
import os
import signal

import pytest

from sruserve.server.engine.constrained.process_client import Bounds, running
from sruserve.server.errors import (
    EngineFailure,
)
from tests.server.engine.constrained.grammar_processes import (
    ALL,
    Grammars,
    begun,
    count_polls,
    is_gone,
    run,
)
from tests.server.observing import until


def test_a_compilation_ends_with_those_who_wait_for_it(grammars: Grammars) -> None:
    async def leave() -> int:
        process = await grammars.start(Bounds())
        os.kill(process.pid, signal.SIGSTOP)  # it would go on for ever
        compiling = asyncio.create_task(process.compile("regex", "a", ALL))
        await asyncio.sleep(0.05)
        compiling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await compiling
        return process.pid

    pid = run(leave())
    until(lambda: is_gone(pid))
    assert len(grammars.memory) == 0


def test_a_process_ends_when_nobody_holds_its_constraint(grammars: Grammars) -> None:
    constraint = grammars.regex("ab")
    constraint_state, pid = begun(constraint), constraint.process.pid
    del constraint
    assert constraint_state.advance(97)
    assert not is_gone(pid)
    del constraint_state
    until(lambda: is_gone(pid))
    assert len(grammars.memory) == 0


def test_one_look_finds_the_processes_that_have_ended(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraints = [grammars.regex(letter) for letter in "abcd"]
    processes = [constraint.process for constraint in constraints]
    os.kill(processes[1].pid, signal.SIGKILL)
    processes[2].end()
    until(lambda: not processes[1].runs)
    looks = count_polls(monkeypatch, lambda: 0)
    assert running(processes) == {processes[0], processes[3]}
    assert looks == {0: 1}


def test_a_process_that_does_not_answer_is_a_failure_and_no_fault_of_the_client(
    grammars: Grammars,
) -> None:
    constraint = grammars.regex("a+")
    position = begun(constraint)
    os.kill(constraint.process.pid, signal.SIGSTOP)
    constraint.process.stall_seconds = 0.01
    assert position.advance(97)
    assert isinstance(position.problem, EngineFailure)
    with pytest.raises(EngineFailure):
        begun(constraint)
