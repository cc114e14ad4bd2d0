"""Who parses next, without a connection."""

import asyncio
from collections.abc import Callable, Hashable

import pytest

from sruserve.server.http.parse_queue import Waiting
from sruserve.server.http.parse_turns import ParseTurns
from tests.server.hand_clock import HandClock


class _Waiting:
    """Something to parse, piece by piece."""

    def __init__(
        self,
        turns: ParseTurns,
        pieces: int,
        done: Callable[["_Waiting"], None],
        owner: Hashable = None,
        waiting: Waiting = Waiting.LONG,
    ) -> None:
        self.turns, self.pieces, self._done = turns, pieces, done
        self.owner, self.waiting = owner, waiting

    def abort(self) -> None:
        raise AssertionError("nothing went wrong")

    def parse_more(self) -> None:
        self.turns.spend(1024, self.owner)
        self._done(self)
        self.pieces -= 1
        if self.pieces:
            self.turns.wait(self)


def test_all_that_wait_get_a_piece_in_their_order_and_a_turn_ends() -> None:
    async def run() -> list[list[_Waiting]]:
        turns, order = ParseTurns(), [[]]  # type: ignore[var-annotated]
        many = [_Waiting(turns, 3, lambda one: order[-1].append(one)) for _ in range(6)]
        for each in many:
            turns.wait(each)
        turns.forget(many.pop())
        while sum(map(len, order)) < 15:
            await asyncio.sleep(0)
            order.append([])
        assert [one for turn in order for one in turn] == many * 3
        return order

    assert max(map(len, asyncio.run(run()))) == 4


def test_a_fault_closes_its_connection_and_no_other_waits_for_it() -> None:
    class Faulty(_Waiting):
        aborted = 0

        def abort(self) -> None:
            self.aborted += 1

    def fail(_: _Waiting) -> None:
        raise ZeroDivisionError

    async def run() -> None:
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: faults.append(type(context["exception"]))
        )
        turns, parsed = ParseTurns(), list[_Waiting]()
        faulty = Faulty(turns, 1, fail)
        for each in (faulty, _Waiting(turns, 2, parsed.append)):
            turns.wait(each)
        for _ in range(5):
            await asyncio.sleep(0)
        assert faulty.aborted == 1
        assert len(parsed) == 2
        assert faults == [ZeroDivisionError]

    asyncio.run(run())


def test_owners_take_turns_however_many_connections_each_has() -> None:
    async def run() -> None:
        turns = ParseTurns()
        order: list[_Waiting] = []
        greedy = [_Waiting(turns, 3, order.append, "greedy") for _ in range(100)]
        modest = [_Waiting(turns, 2, order.append, "modest") for _ in range(3)]
        for each in greedy + modest:
            turns.wait(each)
        gone = modest.pop(0)
        gone.owner = "another"
        turns.forget(gone)
        while turns._waiting:
            await asyncio.sleep(0)
        assert order[:8:2] == greedy[:4]
        assert order[1:8:2] == modest * 2
        assert order[8:] == greedy[4:] + 2 * greedy

    asyncio.run(run())


def test_an_owners_short_requests_and_heads_do_not_wait_for_its_long_ones() -> None:
    async def run() -> None:
        turns = ParseTurns()
        order: list[_Waiting] = []
        long = [_Waiting(turns, 4, order.append) for _ in range(100)]
        heads = [_Waiting(turns, 2, order.append, waiting=Waiting.HEAD) for _ in range(2)]
        short = [_Waiting(turns, 1, order.append, waiting=Waiting.SHORT) for _ in range(3)]
        for each in long + heads + short:
            turns.wait(each)
        while turns._waiting:
            await asyncio.sleep(0)
        assert order[:9:3] == long[:3]
        assert order[1:9:3] == [*heads, heads[0]]
        assert order[2:9:3] == short
        assert order[9:12] == [long[3], heads[1], long[4]]
        assert len(order) == 400 + 4 + 3

    asyncio.run(run())


def test_a_connection_waits_among_those_of_its_new_owner() -> None:
    async def run() -> None:
        turns = ParseTurns()
        order: list[_Waiting] = []
        many = [_Waiting(turns, 1, order.append, "address") for _ in range(100)]
        for each in many:
            turns.wait(each)
        (last := many[-1]).owner = "tenant"
        turns.move(last)
        while turns._waiting:
            await asyncio.sleep(0)
        turns.move(last)  # it does not wait
        assert not turns._waiting
        assert order.index(last) == 1

    asyncio.run(run())


def test_a_turn_begins_one_long_work_and_short_work_while_budget_is_left() -> None:
    async def run() -> None:
        turns = ParseTurns()
        begun: list[list[int]] = [[]]

        async def work(number: int, cost: int) -> None:
            if (turn := turns.take(cost, "one")) is not None:
                await turn
            begun[-1].append(number)

        tasks = [asyncio.create_task(work(number, 100_000)) for number in range(3)]
        tasks += [asyncio.create_task(work(number, 3000)) for number in range(3, 23)]
        leaves = turns.take(100_000, "one")
        assert leaves is not None
        leaves.cancel()
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            begun.append([])
        assert next(filter(None, begun)) == list(range(3, 16))
        assert max(sum(number < 3 for number in turn) for turn in begun) == 1
        assert sorted(number for turn in begun for number in turn) == list(range(23))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("owners", "pauses"),
    [([], False), (["one"], False), (["another"], True), (["another", "one"], True)],
)
def test_what_waits_pauses_only_where_others_ask(owners: list[str], pauses: bool) -> None:
    async def parse(pause_seconds: float, least: int) -> int:
        """How much of what waits is parsed within ten turns, and until there is so much."""
        turns, parsed = ParseTurns(busy_seconds=60, pause_seconds=pause_seconds), list[_Waiting]()
        one = _Waiting(turns, 40, parsed.append, "one")
        for owner in owners:
            turns.spend(1, owner)
        turns.wait(one)
        for _ in range(10):
            await asyncio.sleep(0)
        while len(parsed) < least:
            await asyncio.sleep(0.001)
        return len(parsed)

    assert (asyncio.run(parse(3600, 0)) == 4) == pauses
    assert asyncio.run(asyncio.wait_for(parse(0.001, 8), 60)) >= 8


@pytest.mark.parametrize(("seconds", "pauses"), [(1.0, True), (2.0, False)])
def test_what_waits_pauses_only_soon_after_others_have_asked(seconds: float, pauses: bool) -> None:
    async def parse() -> int:
        """How much of what waits is parsed within ten turns, so long after another request."""
        clock, parsed = HandClock(), list[_Waiting]()
        turns = ParseTurns(busy_seconds=1.5, pause_seconds=3600, clock=clock)
        turns.spend(1, "another")
        clock.now += seconds
        turns.wait(_Waiting(turns, 40, parsed.append, "one"))
        for _ in range(10):
            await asyncio.sleep(0)
        return len(parsed)

    assert (asyncio.run(parse()) == 4) == pauses
