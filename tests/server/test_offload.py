"""Long work on a few threads: in a fair order, and only while somebody waits for it."""

import asyncio
import gc
import threading
import weakref
from asyncio import CancelledError, Future, Task
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sruserve.server.errors import NoProcess
from sruserve.server.offload import Offload, _Work, run_in_thread


class GatedOffload:
    """One thread that is kept busy until `go`, and what was begun since, in that order."""

    def __init__(self) -> None:
        self.pool, self.begun = Offload(1), list[Any]()
        self._free, self._busy = threading.Event(), threading.Event()

    def put(self, name: Any, cost: int, owner: Any = None) -> Task[Any]:
        """Work that waits; it results in its name."""
        return asyncio.ensure_future(self.pool.run(partial(self._do, name), cost, owner))

    async def hold(self) -> Task[None]:
        """Occupy the thread."""
        holding = asyncio.ensure_future(self.pool.run(self._wait, 0))
        while not self._busy.is_set():
            await asyncio.sleep(0.001)
        return holding

    def go(self) -> None:
        self._free.set()

    def _do(self, name: Any) -> Any:
        self.begun.append(name)
        return name

    def _wait(self) -> None:
        self._busy.set()
        assert self._free.wait(60)


def run(talk: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(talk(), 60))


def test_work_results_in_what_it_gives_or_raises() -> None:
    def fails() -> None:
        raise ValueError("so")

    async def talk() -> None:
        pool = Offload(2)
        assert await pool.run(lambda: threading.current_thread().name, 1) == "offload 1"
        with pytest.raises(ValueError, match="so"):
            await pool.run(fails, 1)
        assert await pool.run(lambda: 5, 1) == 5

    run(talk)


def test_no_more_threads_are_started_than_there_may_be() -> None:
    names = set[str]()

    async def talk() -> None:
        pool = Offload(2)
        work = [pool.run(lambda: names.add(threading.current_thread().name), 1) for _ in range(50)]
        await asyncio.gather(*work)

    run(talk)
    assert names <= {"offload 1", "offload 2"}


def test_short_work_goes_before_long_work_that_came_sooner() -> None:
    async def talk() -> None:
        gate = GatedOffload()
        await gate.hold()
        waiting = [gate.put(f"long {i}", 1_000_000) for i in range(40)] + [
            gate.put("short", 20_000)
        ]
        await asyncio.sleep(0)
        gate.go()
        await asyncio.gather(*waiting)
        assert gate.begun[0] == "short"

    run(talk)


def test_long_work_is_not_overtaken_for_ever() -> None:
    async def talk() -> None:
        gate = GatedOffload()
        await gate.hold()
        long = gate.put("long", 100)
        await asyncio.sleep(0)
        gate.go()
        shorts = 0
        while not long.done():
            await gate.put("short", 10)
            shorts += 1
            assert shorts < 20

    run(talk)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=30), st.integers(1, 100))
def test_an_owner_s_work_delays_another_s_by_no_more_than_the_other_s_own(
    costs: list[int], cost: int
) -> None:
    """Whatever one owner has waiting, another's goes when as much of the first is done."""

    async def talk() -> None:
        gate = GatedOffload()
        await gate.hold()
        waiting = [gate.put(("greedy", each), each, "greedy") for each in costs]
        waiting.append(gate.put(("modest", cost), cost, "modest"))
        await asyncio.sleep(0)
        gate.go()
        await asyncio.gather(*waiting)
        before = gate.begun[: gate.begun.index(("modest", cost))]
        assert sum(each for _, each in before) <= cost

    run(talk)


def test_work_that_waits_is_dropped_when_nobody_waits_for_it() -> None:
    async def talk() -> None:
        gate = GatedOffload()
        holding = await gate.hold()
        waiting = [gate.put(i, 1000) for i in range(40)]
        await asyncio.sleep(0)
        assert gate.pool.waiting == 40
        for each in waiting[1:]:
            each.cancel()
        await asyncio.wait(waiting[1:])
        assert gate.pool.waiting == 1
        gate.go()
        assert await waiting[0] == 0
        await holding
        assert gate.begun == [0]

    run(talk)


def test_work_that_is_done_already_is_waited_for_even_by_those_who_left() -> None:
    async def talk() -> None:
        gate = GatedOffload()
        holding = await gate.hold()
        holding.cancel()
        await asyncio.sleep(0.05)
        assert not holding.done()
        gate.go()
        with pytest.raises(CancelledError):
            await holding

    run(talk)


def test_who_is_cancelled_again_still_waits_for_the_thread() -> None:
    async def talk() -> None:
        gate = GatedOffload()
        holding = await gate.hold()
        for _ in range(3):
            holding.cancel()
            await asyncio.sleep(0.01)
            assert not holding.done()
        gate.go()
        with pytest.raises(CancelledError):
            await holding

    run(talk)


def test_a_thread_that_cannot_be_started_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_more(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def talk() -> None:
        pool, begun = Offload(1), list[int]()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_more)
            with pytest.raises(NoProcess):
                await pool.run(lambda: begun.append(1), 1)
        assert pool.waiting == 0
        await pool.run(lambda: begun.append(2), 1)
        assert begun == [2]

    run(talk)


class Gone(Exception):
    pass


class Leaving:
    """A client that leaves as soon as it waits."""

    async def wait(self, done: Future[Any]) -> None:
        done.cancel()
        raise Gone


def test_a_client_that_leaves_takes_its_work_out_of_the_queue() -> None:
    async def talk() -> None:
        gate = GatedOffload()
        await gate.hold()
        left: Awaitable[Any] = gate.pool.run(lambda: gate.begun.append("left"), 1, None, Leaving())
        with pytest.raises(Gone):
            await left
        assert gate.pool.waiting == 0
        gate.go()
        await gate.put("next", 1)
        assert gate.begun == ["next"]

    run(talk)


def test_clients_that_leave_together_cost_a_few_comparisons_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared, clients = 0, 1000
    for name in ("__eq__", "__lt__"):
        compare = getattr(_Work, name)

        def see(one: _Work, other: object, compare: Any = compare) -> Any:
            nonlocal compared
            compared += 1
            return compare(one, other)

        monkeypatch.setattr(_Work, name, see)

    async def talk() -> None:
        nonlocal compared
        gate = GatedOffload()
        await gate.hold()
        leaving = [gate.put(i, 1000) for i in range(clients)]
        staying = [gate.put(-i, 1000 + i) for i in range(10)]
        await asyncio.sleep(0)
        assert gate.pool.waiting == clients + 10
        compared = 0
        for each in leaving[: clients // 3]:
            each.cancel()
        await asyncio.wait(leaving[: clients // 3])
        assert gate.pool.waiting == clients - clients // 3 + 10
        for each in leaving:
            each.cancel()
        await asyncio.wait(leaving)
        assert gate.pool.waiting == 10
        assert compared < 10 * clients
        assert len(gate.pool._waiting) <= 20
        gate.go()
        assert await asyncio.gather(*staying) == gate.begun == [-i for i in range(10)]
        assert gate.pool.waiting == 0

    run(talk)


def test_a_thread_skips_work_that_was_dropped() -> None:
    async def talk() -> None:
        gate = GatedOffload()
        holding = await gate.hold()
        waiting = [gate.put(i, 1000, "owner") for i in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        gate.go()
        await holding
        assert await asyncio.gather(*waiting[1:]) == [1, 2]
        assert gate.begun == [1, 2]
        assert await gate.put("next", 1, "owner") == "next"

    run(talk)


class Weights:
    """What work holds when it fails."""


class Failing:
    """Work that waits for `go` and fails then. made: what it holds."""

    def __init__(self) -> None:
        self.made: weakref.ref[Weights] | None = None
        self.go = threading.Event()

    def __call__(self) -> None:
        weights = Weights()
        self.made = weakref.ref(weights)
        assert self.go.wait(60)
        raise ValueError("so")

    async def begun(self) -> None:
        while self.made is None:
            await asyncio.sleep(0.001)

    async def is_collected(self) -> None:
        """Wait until no reference to the weights is left."""
        async with asyncio.timeout(60):
            while self.made is None or self.made() is not None:
                await asyncio.sleep(0.001)


@pytest.fixture
def uncollected() -> Iterator[None]:
    """The garbage collector does not run."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("where", ["pool", "own"])
def test_a_failure_that_nobody_waits_for_any_more_is_collected(where: str) -> None:
    async def talk() -> None:
        fails = Failing()
        running = run_in_thread("load", fails) if where == "own" else Offload(1).run(fails, 1)
        waiting = asyncio.ensure_future(running)
        await fails.begun()
        waiting.cancel()
        fails.go.set()
        with pytest.raises(CancelledError):
            await waiting
        del waiting, running
        await fails.is_collected()

    run(talk)


@pytest.mark.usefixtures("uncollected")
def test_a_failure_at_the_moment_when_its_client_leaves_is_collected() -> None:
    class Leaving:
        """Leaves when the outcome is there, and before it is delivered."""

        async def wait(self, done: Future[Any]) -> None:
            task = asyncio.current_task()
            assert task is not None
            done.add_done_callback(lambda _: task.cancel())
            await done

    async def talk() -> None:
        fails = Failing()
        fails.go.set()
        with pytest.raises(CancelledError):
            await asyncio.ensure_future(Offload(1).run(fails, 1, None, Leaving()))
        await fails.is_collected()

    run(talk)
