"""Grammars in processes of their own: they follow as others do, and none takes the server."""

import asyncio
import errno
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.constraint import Constraint
from sruserve.server.engine.constrained.memory_budget import GrammarMemory
from sruserve.server.engine.constrained.process_client import Bounds, GrammarProcess, running
from sruserve.server.engine.constrained.process_host import GrammarHost
from sruserve.server.engine.constrained.protocols import MAX_MATCH_BYTES
from sruserve.server.engine.constrained.remote_state import RemoteConstraint, RemoteConstraintState
from sruserve.server.engine.constrained.wire import (
    Position,
    error_reply,
    frame,
    ok_reply,
    pack_position,
)
from sruserve.server.engine.job import Generated, JobKind, Sampling, SequenceInput
from sruserve.server.errors import (
    ConstraintUnsatisfiable,
    EngineFailure,
    InvalidRequest,
    Overloaded,
    ServeError,
    StateTampered,
)
from tests.memory import grows_by_less, malloc_bytes
from tests.server.engine.constrained.test_constraint import SCHEMAS
from tests.server.engine.driver import Driver, Told
from tests.server.http.test_clients_that_leave import until
from tests.support import random_model

T = TypeVar("T")
ALL = ByteVocabulary.of_values(bytes(range(256)))
NO_OPTIONS, FUEL = np.zeros(256, np.bool_), ConstraintUnsatisfiable("it takes too much fuel")


def many(lengths: Iterable[int]) -> dict[str, Any]:
    """Strings of many patterns: to look at all of them takes the product of what each allows."""
    patterns = [f"^(s|x.*({'abcdefg'[n % 5 : n % 5 + 3]}).{{{n}}}z)$" for n in lengths]
    return {"allOf": [{"type": "string", "pattern": pattern} for pattern in patterns]}


MANY_AT_ONCE = many(range(60))


class Grammars:
    """Makes confined constraints; `memory` counts them."""

    def __init__(self, most_bytes: int = 1 << 30) -> None:
        self.host = GrammarHost()
        self.memory = GrammarMemory(most_bytes)

    async def start(self, bounds: Bounds) -> GrammarProcess:
        process = GrammarProcess(self.host, await self.host.fork(), self.memory, bounds)
        await process.start()
        return process

    async def make(
        self,
        kind: str,
        given: object,
        bounds: Bounds | None = None,
        vocabulary: ByteVocabulary = ALL,
    ) -> RemoteConstraint:
        process = await self.start(bounds or Bounds())
        return await RemoteConstraint.compiled(kind, given, vocabulary, process)

    def regex(self, pattern: str, **given: Any) -> RemoteConstraint:
        return run(self.make("regex", pattern, **given))


def run(work: Coroutine[Any, Any, T]) -> T:
    async def within() -> T:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(within())


def begun(constraint: RemoteConstraint, spelled: bytes = b"") -> RemoteConstraintState:
    """A position that is there; raises what keeps it from being so."""
    position = constraint.begin(spelled)
    assert position.ready(time.monotonic() + 60)
    if position.problem is not None:
        raise position.problem
    return position


def is_gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(scope="module")
def shared() -> Iterator[Grammars]:
    grammars = Grammars()
    yield grammars
    grammars.host.close()


@pytest.fixture
def grammars(shared: Grammars) -> Grammars:
    gc.collect()  # what other tests were told may hold frames, and these constraints
    return shared


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder = tmp_path_factory.mktemp("lm") / "bytes"
    with Driver(random_model(folder, vocabulary=list(range(256)))) as driver:
        yield driver
        assert driver.engine.rows == 0, "a row leaked"


@settings(max_examples=15)
@given(
    constraint=st.sampled_from(
        [("json_schema", schema) for schema in SCHEMAS]
        + [("regex", pattern) for pattern in ("[a-c]{3,9}!", "é+|[^é]{2}", "(?:abc|axq)*")]
    ),
    vocabulary=st.sampled_from([ALL, ByteVocabulary.of_values(b'abcx3" ,.{}[]:-0@\xc3\xa9n')]),
    draws=st.lists(st.tuples(st.integers(0, 255), st.booleans(), st.integers(0, 9))),
)
def test_a_confined_text_has_the_same_options_as_one_that_is_not(
    grammars: Grammars,
    constraint: tuple[str, Any],
    vocabulary: ByteVocabulary,
    draws: list[tuple[int, bool, int]],
) -> None:
    kind, given = constraint
    make = Constraint.regex if kind == "regex" else Constraint.json_schema
    try:
        inside = make(given, vocabulary)
    except InvalidRequest as error:
        with pytest.raises(type(error), match="vocabulary cannot spell"):
            run(grammars.make(kind, given, vocabulary=vocabulary))
        return
    confined = run(grammars.make(kind, given, vocabulary=vocabulary))
    assert confined.identity == inside.identity
    one, other = inside.begin(), begun(confined)
    for draw, settle, kept in draws:
        assert one.allowed_ids.tolist() == other.allowed_ids.tolist()
        if one.ended:
            break
        token = int(one.allowed_ids[draw % len(one.allowed_ids)])
        assert other.expect(token) == token
        assert one.advance(token) == other.advance(token)
        if settle:
            count = min(kept, one.uncommitted)
            one.commit(count)
            other.commit(count)
        assert (one.consumed, one.uncommitted, one.ended) == (
            other.consumed,
            other.uncommitted,
            other.ended,
        )
    one.commit(0)
    again = inside.begin(one.consumed).allowed_ids.tolist()  # it knows of fewer dead ends
    assert begun(confined, one.consumed).allowed_ids.tolist() == again


HOSTILE: list[tuple[str, Any]] = [
    ("json_schema", MANY_AT_ONCE),
    ("regex", "((a{1000}){1000}){1000}"),
    ("regex", r"(?:\p{L}{1,1000}\p{N}?){1000}(?:\p{Lu}|x){1000}"),
    ("json_schema", {"type": "array", "items": {"type": "integer"}, "minItems": 100_000_000}),
    ("json_schema", {"type": "array", "items": MANY_AT_ONCE}),
]


@pytest.mark.parametrize(("kind", "given"), HOSTILE, ids=lambda value: str(value)[:30])
def test_a_grammar_that_takes_too_much_ends_its_own_process_and_is_refused(
    grammars: Grammars, kind: str, given: Any
) -> None:
    def refuse() -> None:
        with pytest.raises(InvalidRequest):
            run(grammars.make(kind, given))

    assert grows_by_less(8 << 20, malloc_bytes, refuse)
    assert len(grammars.memory) == 0
    assert begun(grammars.regex("a")).allowed_ids.tolist() == [97]


def test_repeated_characters_are_not_walked_through_before_they_are_written(
    grammars: Grammars,
) -> None:
    """`a{100000000}` once took 5 GiB in a minute and a half."""
    bounds = Bounds(compile_seconds=0.5, compile_bytes=16 << 20)
    constraint_state = begun(grammars.regex("xa{100000000}|yb", bounds=bounds))
    for token in b"xaaa":
        assert constraint_state.advance(token)
    assert constraint_state.allowed_ids.tolist() == [97]


def test_a_text_whose_grammar_grows_too_much_fails_alone(lm: Driver, grammars: Grammars) -> None:
    async def both() -> None:
        small = await grammars.make("regex", "[a-z]{1,40}", Bounds(growth_bytes=8 << 20))
        large = await grammars.make("regex", r"(\w{1,80}\s?){1,80}", Bounds(growth_bytes=1 << 20))
        alone = await lm.generate("Hello", 40, constraint=small)
        failed, again = await asyncio.gather(
            lm.generate("Hello", 3000, constraint=large),
            lm.generate("Hello", 40, constraint=small),
            return_exceptions=True,
        )
        assert isinstance(failed, InvalidRequest)
        assert isinstance(again, Generated)
        assert again.text == alone.text
        with pytest.raises(InvalidRequest):
            begun(large)
        assert not large.process.fresh

    run(both())


def test_a_step_that_takes_too_long_ends_its_process(grammars: Grammars) -> None:
    endless = {"type": "array", "items": {"type": "integer"}, "minItems": 100_000_000}
    described = {"anyOf": [{"const": "s"}, endless]}
    constraint = run(grammars.make("json_schema", described, Bounds(step_seconds=0.004)))
    constraint_state = begun(constraint)
    assert constraint_state.advance(ord("["))
    assert isinstance(constraint_state.problem, InvalidRequest)
    assert constraint_state.ended
    until(lambda: is_gone(constraint.process.pid))


def test_a_text_earns_the_time_of_its_steps(grammars: Grammars) -> None:
    def taken(bounds: Bounds) -> int:
        constraint = run(grammars.make("regex", "[a-z ]{18000}", bounds))
        constraint_state = begun(constraint)
        for count in range(4000):
            if constraint_state.problem is not None:
                return count
            constraint_state.advance(ord("a"))
            constraint_state.commit(1)
        return 4000

    assert taken(Bounds()) == 4000
    assert taken(Bounds(step_seconds=0.004, earned_seconds=1e-6)) < 4000


def test_a_long_text_is_read_again_with_the_fuel_of_many_steps(grammars: Grammars) -> None:
    spelled = b"ab c" * 4000
    constraint = grammars.regex("[a-z ]{18000}")
    assert begun(constraint, spelled).consumed == spelled
    whole = run(grammars.make("json_schema", {"type": "array", "items": {"type": "integer"}}))
    longest = (b"[" + b"1," * MAX_MATCH_BYTES)[:MAX_MATCH_BYTES]
    assert begun(whole, longest).length == MAX_MATCH_BYTES
    with pytest.raises(StateTampered):
        begun(constraint, b"ab9")
    assert begun(constraint, b"ab").length == 2


def test_a_helper_is_not_blamed_for_those_who_leave_before_a_process_is_there(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars.regex("a")
    helper = grammars.host.pid
    assert helper is not None

    async def leave() -> None:
        os.kill(helper, signal.SIGSTOP)  # it is slow for a while
        try:
            starting = asyncio.create_task(grammars.start(Bounds()))
            while not grammars.host.starting:
                await asyncio.sleep(0)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
        finally:
            os.kill(helper, signal.SIGCONT)
        while grammars.host.starting:
            await asyncio.sleep(0.01)

    run(leave())
    assert len(grammars.memory) == 0
    monkeypatch.setattr(grammars.host, "hang_seconds", 0.0)
    grammars.regex("b")
    assert grammars.host.pid == helper


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


def test_a_process_makes_way_for_the_server(grammars: Grammars) -> None:
    constraint = grammars.regex("a*")
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, constraint.process.pid) == min(own + 5, 19)


def test_a_process_ends_when_nobody_holds_its_constraint(grammars: Grammars) -> None:
    constraint = grammars.regex("ab")
    constraint_state, pid = begun(constraint), constraint.process.pid
    del constraint
    assert constraint_state.advance(97)
    assert not is_gone(pid)
    del constraint_state
    until(lambda: is_gone(pid))
    assert len(grammars.memory) == 0


def count_polls(monkeypatch: pytest.MonkeyPatch, when: Callable[[], int]) -> Counter[int]:
    """Count the polls from now on, by what `when` tells at each."""
    polls: Counter[int] = Counter()
    poll = select.poll

    class Counted:
        def __init__(self) -> None:
            self._poll = poll()
            self.register = self._poll.register

        def poll(self, milliseconds: float) -> list[tuple[int, int]]:
            polls[when()] += 1
            return self._poll.poll(milliseconds)

    monkeypatch.setattr(select, "poll", Counted)
    return polls


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


def test_texts_that_wait_for_one_process_take_one_poll_of_each_turn(
    lm: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, texts = lm.engine, 12
    ours, theirs = socket.socketpair()
    process = GrammarProcess(GrammarHost(), ours, GrammarMemory(1 << 30), Bounds())
    sampling = Sampling(constraint=RemoteConstraint(b"x" * 16, process, ALL))
    position = frame(ok_reply(pack_position(Position(True, 0, ~NO_OPTIONS))))

    async def turns(told: list[Told]) -> None:
        with monkeypatch.context() as patch:
            polls = count_polls(patch, lambda: engine.turns)
            await lm.until(lambda: len(polls) > 20)
        del polls[min(polls)], polls[max(polls)]
        assert set(polls.values()) == {1}, len(told)

    async def wait() -> None:
        items = [SequenceInput(lm.ids("Hello"))] * 3
        told = [
            lm.job(JobKind.GENERATE, items, sampling=sampling) for _ in range(texts // len(items))
        ]
        await lm.until(lambda: len(process._unanswered) == texts)
        await turns(told)  # none has begun
        theirs.sendall(position * texts)
        await lm.until(lambda: len(process._unanswered) == texts and bool(engine._scheduler._late))
        await turns(told)  # none has its first token
        theirs.sendall(position * texts)
        await lm.until(lambda: len(process._unanswered) == texts and not engine._scheduler._late)
        await turns(told)  # none has its second token
        for each in told:
            each.job.done.cancel()
        await lm.until(lambda: not engine.busy)

    with theirs:
        run(wait())


def test_positions_of_texts_that_are_over_are_forgotten(grammars: Grammars) -> None:
    """All of the positions, of 2,000 bytes each, would take more than the process may."""
    constraint = run(
        grammars.make(
            "json_schema",
            {"type": "array", "items": {"type": "integer"}},
            Bounds(growth_bytes=6 << 20),
        )
    )
    for _ in range(300):
        assert begun(constraint, b"[" + b"1," * 1000).length == 2001


def test_a_process_has_none_of_the_servers_secrets_and_sockets(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SRUSERVE_STATE_KEYS", "secret")
    other = Grammars()
    constraint = other.regex("a")
    helper = other.host.pid
    assert helper is not None
    for pid, sockets in ((helper, 1), (constraint.process.pid, 1)):
        process = psutil.Process(pid)
        assert not [name for name in process.environ() if name.startswith("SRUSERVE")]
        links = [os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir()]
        assert sum(link.startswith("socket:") for link in links) == sockets
        assert process.num_threads() == 1
        assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
    other.host.close()
    until(lambda: is_gone(helper))


def test_a_helper_that_was_killed_is_replaced(grammars: Grammars) -> None:
    constraint = grammars.regex("a+")
    helper = grammars.host.pid
    assert helper is not None
    os.kill(helper, signal.SIGKILL)
    until(lambda: is_gone(helper))
    assert begun(constraint).advance(97)  # what it has started goes on
    assert begun(grammars.regex("b+")).advance(98)
    assert grammars.host.pid != helper


def test_a_process_for_which_no_descriptor_is_left_is_refused_as_overload(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def ask() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(socket, "socketpair", none_left)
            with pytest.raises(Overloaded, match="retry"):
                await grammars.make("regex", "a+")

    run(ask())
    assert begun(grammars.regex("a+")).advance(97)


def test_a_helper_that_hangs_is_replaced(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars.regex("a+")
    helper = grammars.host.pid
    assert helper is not None

    async def leave() -> None:
        async with asyncio.timeout(0.05):
            await grammars.make("regex", "b+")

    for _ in range(2):
        os.kill(helper, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            run(leave())
        os.kill(helper, signal.SIGCONT)
        assert begun(grammars.regex("b+")).advance(98)
        assert grammars.host.pid == helper, "it did not hang for long"
    os.kill(helper, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        run(leave())
    monkeypatch.setattr(grammars.host, "hang_seconds", 0.0)
    assert begun(grammars.regex("b+")).advance(98)
    assert grammars.host.pid != helper
    until(lambda: is_gone(helper))


def test_a_helper_that_hangs_is_ended_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Grammars()
    other.regex("a")
    helper = other.host.pid
    assert helper is not None
    os.kill(helper, signal.SIGSTOP)
    here, waited = threading.current_thread(), list[threading.Thread]()
    wait = subprocess.Popen.wait

    def waits(self: "subprocess.Popen[bytes]", timeout: float | None = None) -> int:
        waited.append(threading.current_thread())
        return wait(self, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", waits)
    other.host.close()
    until(lambda: is_gone(helper) and bool(waited))
    assert here not in waited


def test_a_text_whose_grammar_is_slow_is_left_out_of_steps_and_says_the_same(
    lm: Driver, grammars: Grammars
) -> None:
    def said(told: Told) -> str:
        return "".join(piece.text for piece in told.by_item[0] if isinstance(piece, Generated))

    def has_told(told: Told, characters: int) -> bool:
        return len(said(told)) >= characters

    async def both() -> None:
        constraint = await grammars.make("regex", "[a-z]{60}")
        item = SequenceInput(lm.ids("Hello"), seed=7)
        wanted = Sampling(max_tokens=50, constraint=constraint)
        alone = await lm.generate("Hello", 50, constraint=constraint)
        for tokens in (0, 1, 20):  # before it begins, with its first one, and within a burst
            slow = lm.job(JobKind.GENERATE, [item], sampling=wanted, stream=True)
            await lm.until(partial(has_told, slow, tokens))
            os.kill(constraint.process.pid, signal.SIGSTOP)
            for _ in range(3):  # others go on
                assert (await lm.generate("Hello", 100)).tokens
            os.kill(constraint.process.pid, signal.SIGCONT)
            await slow.results()
            assert said(slow) == alone.text

    run(both())


@pytest.mark.parametrize("ends", ["fails", "leaves"])
def test_an_engine_forgets_a_text_that_ends_before_it_begins(
    lm: Driver, grammars: Grammars, ends: str
) -> None:
    beginning = lm.engine._scheduler._beginning

    async def end() -> None:
        constraint = await grammars.make("regex", "a{60}")
        os.kill(constraint.process.pid, signal.SIGSTOP)
        wanted = Sampling(constraint=constraint)
        told = lm.job(JobKind.GENERATE, [SequenceInput(lm.ids("Hello"))], sampling=wanted)
        await lm.until(lambda: bool(beginning))
        if ends == "leaves":
            told.job.done.cancel()
        os.kill(constraint.process.pid, signal.SIGKILL)
        if ends == "fails":
            with pytest.raises(ServeError):
                await told.results()
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
def test_a_text_that_cannot_begin_is_refused_whoever_looks_first(
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
        told = lm.job(JobKind.GENERATE, items, sampling=sampling)
        await lm.until(lambda: bool(scheduler._beginning))
        await lm.until(lambda: len(process._unanswered) == 2)
        theirs.sendall(position * 2)
        await lm.until(lambda: len(scheduler._late) == 2)
        if accepted:
            theirs.sendall(position * 2)
            await lm.until(lambda: len(scheduler._unready) == 2)
        theirs.sendall(problem)
        with pytest.raises(ConstraintUnsatisfiable):
            await told.results()
        await lm.until(lambda: not lm.engine.busy)

    with theirs:
        run(fail())
    assert not scheduler._late
    assert not scheduler._unready


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


def test_answers_are_told_apart_and_those_of_texts_that_are_over_are_forgotten(
    grammars: Grammars,
) -> None:
    constraint = grammars.regex("a[bc]|x[yz]")
    one, gone, other = begun(constraint), begun(constraint), begun(constraint)
    one.expect(ord("a"))
    gone.expect(ord("x"))
    other.expect(ord("x"))
    del gone
    assert other.advance(ord("x"))
    assert one.advance(ord("a"))
    assert bytes(other.allowed_ids.tolist()) == b"yz"
    assert bytes(one.allowed_ids.tolist()) == b"bc"
    assert not constraint.process._answers


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
        wanted = Sampling(max_tokens=40, constraint=constraint)
        items = [SequenceInput(lm.ids(""), state, seed=7, choice=choice) for choice in range(3)]
        alone = [
            await lm.job(JobKind.GENERATE, [item], sampling=wanted).results() for item in items
        ]
        begins.clear()
        together = await lm.job(JobKind.GENERATE, items, sampling=wanted).results()
        assert [together[choice] for choice in range(3)] == [one[0] for one in alone]
        assert len(begins) == 1

    monkeypatch.setattr(GrammarProcess, "begin", noted)
    run(texts())


def test_a_copy_of_a_position_goes_its_own_way(grammars: Grammars) -> None:
    first = grammars.regex("abc(?:de|fg)").begin(b"abc")
    other = first.copy()
    for position in (first, other):
        assert position.ready(time.monotonic() + 60)
    assert first.advance(ord("d"))
    assert other.advance(ord("f"))
    assert (first.consumed, other.consumed) == (b"abcd", b"abcf")
    assert bytes(other.allowed_ids.tolist()) == b"g"


def test_texts_that_end_before_they_are_sent_take_no_memory(grammars: Grammars) -> None:
    constraint = grammars.regex("[a-z]*")
    spelled = b"a" * 31_000
    os.kill(constraint.process.pid, signal.SIGSTOP)
    tracemalloc.start()
    try:
        for _ in range(300):
            texts = [constraint.begin(spelled)]
            texts += [texts[0].copy(), texts[0].copy()]
            assert not any(text.ready(time.monotonic()) for text in texts)
            texts.clear()
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
        os.kill(constraint.process.pid, signal.SIGCONT)
    assert begun(constraint, b"abc").advance(ord("d"))


def test_a_copy_of_a_text_that_ended_before_it_was_sent_begins_by_itself(
    grammars: Grammars,
) -> None:
    constraint = grammars.regex("[a-z]*[0-9]*")
    spelled = b"a" * 30_000
    os.kill(constraint.process.pid, signal.SIGSTOP)
    others = [constraint.begin(spelled) for _ in range(30)]  # more than the socket takes
    first = constraint.begin(spelled + b"1")
    copy = first.copy()
    del first
    others.clear()
    os.kill(constraint.process.pid, signal.SIGCONT)
    assert copy.ready(time.monotonic() + 60)
    assert copy.advance(ord("2"))
    assert copy.consumed == spelled + b"12"


def test_a_token_that_is_late_is_taken_back_alone(grammars: Grammars) -> None:
    constraint_state = begun(grammars.regex("[a-c]{3}[x-z]{3}"))
    assert constraint_state.advance(ord("a"))
    assert constraint_state.advance(ord("b"))
    constraint_state.expect(ord("c"))
    constraint_state.commit(2)
    assert constraint_state.advance(ord("c"))
    assert bytes(constraint_state.allowed_ids.tolist()) == b"xyz"
    constraint_state.commit(0)
    assert constraint_state.consumed == b"ab"
    assert constraint_state.advance(ord("a"))
    assert constraint_state.advance(ord("x"))
    constraint_state.commit(2)
    assert constraint_state.consumed == b"abax"


CODE = """
import asyncio, os, signal
from sruserve.server.engine.constrained.process_client import *
from sruserve.server.engine.constrained.process_host import GrammarHost
from sruserve.server.engine.constrained.memory_budget import GrammarMemory

async def start():
    host = GrammarHost()
    process = GrammarProcess(host, await host.fork(), GrammarMemory(1 << 30), Bounds())
    await process.start()
    await process.compile("regex", "a", ByteVocabulary.of_values(b"a"))
    return host, process

host, process = asyncio.run(start())
print(host.pid, process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_all_processes_end_with_a_server_that_is_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    helper, process = map(int, done.stdout.split())
    until(lambda: is_gone(helper) and is_gone(process))


def test_what_all_hold_together_is_bounded_and_the_largest_ends(grammars: Grammars) -> None:
    few = Grammars(most_bytes=16 << 20)
    try:
        small, large = few.regex("[a-z]{9}"), few.regex(r"(\w{1,80}\s?){1,80}")
        assert len(few.memory) == 2
        position = begun(small)
        growing = begun(large)
        while not growing.ended:
            assert growing.advance(growing.allowed_ids[0])
        assert isinstance(growing.problem, Overloaded)
        with pytest.raises(Overloaded):
            begun(large)
        assert few.memory.held_bytes <= 16 << 20
        assert position.advance(97)
        assert position.problem is None
    finally:
        few.host.close()


class Held:
    """A process that says that it holds so much."""

    def __init__(self, owner: str, held_bytes: int) -> None:
        self.owner, self.held_bytes = owner, held_bytes
        self.ended = False

    def end(self, reason: ServeError | None = None) -> None:
        assert isinstance(reason, Overloaded)
        self.ended = True


def test_the_largest_of_the_owner_who_holds_most_in_all_ends() -> None:
    memory = GrammarMemory(60 << 20)
    crowd = [Held("many", size << 20) for size in (6, 8, 7, 5)]
    alone = Held("one", 20 << 20)
    for holder in (*crowd, alone):
        memory.add(holder)
    memory.check()
    assert [holder.ended for holder in (*crowd, alone)] == [False, True, False, False, False]
    memory.check()
    assert sum(holder.ended for holder in crowd) == 1
