"""A line with turns: nobody is passed over, and no owner keeps another one waiting."""

import asyncio

import pytest

from sruserve.server.budget import Budget
from sruserve.server.errors import Overloaded
from sruserve.server.tasks.line import Line


def line(limit: int = 100, share: int = 50) -> Line:
    return Line(Budget(limit, lambda: Overloaded("too many wait"), share))


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Visits:
    """Takes turns, in the order of `names`, each of an owner's own number of turns."""

    def __init__(self, line: Line) -> None:
        self.line, self.order = line, list[str]()

    async def visit(self, name: str) -> None:
        async with self.line.turn(name[0]):
            self.order.append(name)
            await asyncio.sleep(0)


def test_owners_take_turns_however_many_turns_one_of_them_asks_for() -> None:
    async def run() -> list[str]:
        visits = Visits(line())
        names = [*(f"a{n}" for n in range(5)), "b0", "b1", "c0"]
        await asyncio.gather(*map(visits.visit, names))
        return visits.order

    assert asyncio.run(run()) == ["a0", "a1", "b0", "c0", "a2", "b1", "a3", "a4"]


def test_whoever_leaves_is_passed_over_even_when_its_turn_has_come() -> None:
    async def run() -> list[str]:
        visits = Visits(line())
        tasks = [asyncio.create_task(visits.visit(f"a{n}")) for n in range(5)]
        await asyncio.sleep(0)
        tasks[2].cancel()  # while it waits
        while visits.order != ["a0"] or not tasks[0].done():
            await asyncio.sleep(0)
        tasks[1].cancel()  # its turn is given, and it has not seen that
        async with asyncio.timeout(60):
            await asyncio.gather(*tasks, return_exceptions=True)
            await visits.visit("b0")
        return visits.order

    order = asyncio.run(run())
    assert order[0] == "a0"
    assert order[-3:] == ["a3", "a4", "b0"]


def test_only_so_many_may_wait_and_of_one_owner_fewer() -> None:
    async def run() -> None:
        crowd = line(limit=4, share=3)
        visits = Visits(crowd)
        async with crowd.turn("a"):
            waiting = [asyncio.create_task(visits.visit(name)) for name in ("a1", "a2")]
            await settled()
            with pytest.raises(Overloaded):
                await visits.visit("a3")
            waiting.append(asyncio.create_task(visits.visit("b1")))
            await settled()
            with pytest.raises(Overloaded):
                await visits.visit("c1")
            waiting.pop(0).cancel()
            await settled()
            waiting.append(asyncio.create_task(visits.visit("c2")))
        await asyncio.gather(*waiting)
        await visits.visit("a4")

    asyncio.run(run())
