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
from collections.abc import Coroutine, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sruserve.server.engine import confined, grammar_host
from sruserve.server.engine.alphabet import Alphabet
from sruserve.server.engine.confined import Bounds, GrammarProcess, running
from sruserve.server.engine.confined_text import ConfinedConstraint, ConfinedSpelling
from sruserve.server.engine.constrained import MOST_SPELLED
from sruserve.server.engine.constraint import Constraint
from sruserve.server.engine.grammar_host import GrammarHost
from sruserve.server.engine.grammar_memory import GrammarMemory
from sruserve.server.engine.jobs import Generated, Item, Kind, Sampling
from sruserve.server.errors import (
    EngineFailure,
    InvalidRequest,
    Overloaded,
    ServeError,
    StateTampered,
)
from tests.server.engine.driver import Driver, Told
from tests.server.engine.test_constraint import SCHEMAS
from tests.server.test_clients_that_leave import until
from tests.support import random_model

T = TypeVar("T")
ALL = Alphabet.of_values(bytes(range(256)))


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
        self, kind: str, given: object, bounds: Bounds | None = None, alphabet: Alphabet = ALL
    ) -> ConfinedConstraint:
        process = await self.start(bounds or Bounds())
        return await ConfinedConstraint.compiled(kind, given, alphabet, process)

    def regex(self, pattern: str, **given: Any) -> ConfinedConstraint:
        return run(self.make("regex", pattern, **given))


def run(work: Coroutine[Any, Any, T]) -> T:
    async def within() -> T:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(within())


def begun(constraint: ConfinedConstraint, spelled: bytes = b"") -> ConfinedSpelling:
    """A position that is there; raises what keeps it from being so."""
    position = constraint.begin(spelled)
    assert position.ready(time.monotonic() + 60)
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
    alphabet=st.sampled_from([ALL, Alphabet.of_values(b'abcx3" ,.{}[]:-0@\xc3\xa9n')]),
    draws=st.lists(st.tuples(st.integers(0, 255), st.booleans(), st.integers(0, 9))),
)
def test_a_confined_text_has_the_same_options_as_one_that_is_not(
    grammars: Grammars,
    constraint: tuple[str, Any],
    alphabet: Alphabet,
    draws: list[tuple[int, bool, int]],
) -> None:
    kind, given = constraint
    make = Constraint.regex if kind == "regex" else Constraint.json_schema
    try:
        inside = make(given, alphabet)
    except InvalidRequest as error:
        with pytest.raises(type(error), match="vocabulary cannot spell"):
            run(grammars.make(kind, given, alphabet=alphabet))
        return
    confined = run(grammars.make(kind, given, alphabet=alphabet))
    assert confined.identity == inside.identity
    one, other = inside.begin(), begun(confined)
    for draw, settle, kept in draws:
        assert one.ids.tolist() == other.ids.tolist()
        if one.ended:
            break
        token = int(one.ids[draw % len(one.ids)])
        assert other.expect(token) == token
        assert one.take(token) == other.take(token)
        if settle:
            count = min(kept, one.ahead)
            one.settle(count)
            other.settle(count)
        assert (one.spelled, one.ahead, one.ended) == (other.spelled, other.ahead, other.ended)
    one.settle(0)
    again = inside.begin(one.spelled).ids.tolist()  # it knows of fewer dead ends
    assert begun(confined, one.spelled).ids.tolist() == again


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
    before = psutil.Process().memory_info().rss
    with pytest.raises(InvalidRequest):
        run(grammars.make(kind, given))
    assert psutil.Process().memory_info().rss - before < 64 << 20
    assert len(grammars.memory) == 0
    assert begun(grammars.regex("a")).ids.tolist() == [97]


def test_repeated_characters_are_not_walked_through_before_they_are_written(
    grammars: Grammars,
) -> None:
    """`a{100000000}` once took 5 GiB in a minute and a half."""
    bounds = Bounds(compile_seconds=0.5, compile_bytes=16 << 20)
    spelling = begun(grammars.regex("xa{100000000}|yb", bounds=bounds))
    for token in b"xaaa":
        assert spelling.take(token)
    assert spelling.ids.tolist() == [97]


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
    spelling = begun(constraint)
    assert spelling.take(ord("["))
    assert isinstance(spelling.problem, InvalidRequest)
    assert spelling.ended
    until(lambda: is_gone(constraint.process.pid))


def test_a_text_earns_the_time_of_its_steps(grammars: Grammars) -> None:
    def taken(bounds: Bounds) -> int:
        constraint = run(grammars.make("regex", "[a-z ]{18000}", bounds))
        spelling = begun(constraint)
        for count in range(4000):
            if spelling.problem is not None:
                return count
            spelling.take(ord("a"))
            spelling.settle(1)
        return 4000

    assert taken(Bounds()) == 4000
    assert taken(Bounds(step_seconds=0.004, earned_seconds=1e-6)) < 4000


def test_a_long_text_is_read_again_with_the_fuel_of_many_steps(grammars: Grammars) -> None:
    spelled = b"ab c" * 4000
    constraint = grammars.regex("[a-z ]{18000}")
    assert begun(constraint, spelled).spelled == spelled
    whole = run(grammars.make("json_schema", {"type": "array", "items": {"type": "integer"}}))
    longest = (b"[" + b"1," * MOST_SPELLED)[:MOST_SPELLED]
    assert begun(whole, longest).length == MOST_SPELLED
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
            await asyncio.sleep(0.05)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
        finally:
            os.kill(helper, signal.SIGCONT)
        while grammars.host.asked:
            await asyncio.sleep(0.01)

    run(leave())
    assert len(grammars.memory) == 0
    monkeypatch.setattr(grammar_host, "START_SECONDS", 0.0)
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
    spelling, pid = begun(constraint), constraint.process.pid
    del constraint
    assert spelling.take(97)
    assert not is_gone(pid)
    del spelling
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
    looks: list[float] = []
    poll = select.poll

    class Counted:
        def __init__(self) -> None:
            self._poll = poll()
            self.register = self._poll.register

        def poll(self, seconds: float) -> list[tuple[int, int]]:
            looks.append(seconds)
            return self._poll.poll(seconds)

    monkeypatch.setattr(select, "poll", Counted)
    assert running(processes) == {processes[0], processes[3]}
    assert looks == [0]


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
    assert begun(constraint).take(97)  # what it has started goes on
    assert begun(grammars.regex("b+")).take(98)
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
    assert begun(grammars.regex("a+")).take(97)


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
        assert begun(grammars.regex("b+")).take(98)
        assert grammars.host.pid == helper, "it did not hang for long"
    os.kill(helper, signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        run(leave())
    monkeypatch.setattr(grammar_host, "START_SECONDS", 0.0)
    assert begun(grammars.regex("b+")).take(98)
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
        item = Item(lm.ids("Hello"), seed=7)
        wanted = Sampling(max_tokens=50, constraint=constraint)
        alone = await lm.generate("Hello", 50, constraint=constraint)
        for tokens in (0, 1, 20):  # before it begins, with its first one, and within a burst
            slow = lm.job(Kind.GENERATE, [item], sampling=wanted, stream=True)
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
        told = lm.job(Kind.GENERATE, [Item(lm.ids("Hello"))], sampling=wanted)
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


def test_a_process_that_does_not_answer_is_a_failure_and_no_fault_of_the_client(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    constraint = grammars.regex("a+")
    position = begun(constraint)
    os.kill(constraint.process.pid, signal.SIGSTOP)
    monkeypatch.setattr(confined, "_STALL_SECONDS", 0.01)
    assert position.take(97)
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
    assert other.take(ord("x"))
    assert one.take(ord("a"))
    assert bytes(other.ids.tolist()) == b"yz"
    assert bytes(one.ids.tolist()) == b"bc"
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
        items = [Item(lm.ids(""), state, seed=7, choice=choice) for choice in range(3)]
        alone = [await lm.job(Kind.GENERATE, [item], sampling=wanted).results() for item in items]
        begins.clear()
        together = await lm.job(Kind.GENERATE, items, sampling=wanted).results()
        assert [together[choice] for choice in range(3)] == [one[0] for one in alone]
        assert len(begins) == 1

    monkeypatch.setattr(GrammarProcess, "begin", noted)
    run(texts())


def test_a_copy_of_a_position_goes_its_own_way(grammars: Grammars) -> None:
    first = grammars.regex("abc(?:de|fg)").begin(b"abc")
    other = first.copy()
    for position in (first, other):
        assert position.ready(time.monotonic() + 60)
    assert first.take(ord("d"))
    assert other.take(ord("f"))
    assert (first.spelled, other.spelled) == (b"abcd", b"abcf")
    assert bytes(other.ids.tolist()) == b"g"


def test_a_token_that_is_late_is_taken_back_alone(grammars: Grammars) -> None:
    spelling = begun(grammars.regex("[a-c]{3}[x-z]{3}"))
    assert spelling.take(ord("a"))
    assert spelling.take(ord("b"))
    spelling.expect(ord("c"))
    spelling.settle(2)
    assert spelling.take(ord("c"))
    assert bytes(spelling.ids.tolist()) == b"xyz"
    spelling.settle(0)
    assert spelling.spelled == b"ab"
    assert spelling.take(ord("a"))
    assert spelling.take(ord("x"))
    spelling.settle(2)
    assert spelling.spelled == b"abax"


CODE = """
import asyncio, os, signal
from sruserve.server.engine.confined import *
from sruserve.server.engine.grammar_host import GrammarHost
from sruserve.server.engine.grammar_memory import GrammarMemory

async def start():
    host = GrammarHost()
    process = GrammarProcess(host, await host.fork(), GrammarMemory(1 << 30), Bounds())
    await process.start()
    await process.compile("regex", "a", Alphabet.of_values(b"a"))
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
            assert growing.take(growing.ids[0])
        assert isinstance(growing.problem, Overloaded)
        with pytest.raises(Overloaded):
            begun(large)
        assert few.memory.held_bytes <= 16 << 20
        assert position.take(97)
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
