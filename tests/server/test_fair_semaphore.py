"""A fair semaphore: no owner starves another, and no place is lost with those who leave."""

import asyncio
from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sruserve.server.fair_semaphore import FairSemaphore


async def settle() -> None:
    """Let all tasks run as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)


class Visits:
    """Visitors who record the order in which they get places; the first letter is the owner."""

    def __init__(self, semaphore: FairSemaphore) -> None:
        self.semaphore, self.order = semaphore, list[str]()

    async def visit(self, name: str) -> None:
        async with self.semaphore.place(name[0]):
            self.order.append(name)
            await asyncio.sleep(0)


def test_owners_take_turns_however_many_places_one_of_them_requests() -> None:
    async def run() -> list[str]:
        visits = Visits(FairSemaphore(1))
        names = [*(f"a{n}" for n in range(5)), "b0", "b1", "c0"]
        await asyncio.gather(*map(visits.visit, names))
        return visits.order

    assert asyncio.run(run()) == ["a0", "a1", "b0", "c0", "a2", "b1", "a3", "a4"]


@given(st.integers(1, 4), st.lists(st.integers(0, 5), max_size=40))
def test_an_owner_that_comes_last_waits_for_one_turn_of_each_other_owner(
    places: int, owners: list[int]
) -> None:
    async def run() -> None:
        semaphore, order, released = FairSemaphore(places), list[Hashable](), 0

        async def acquire(owner: Hashable) -> None:
            await semaphore.acquire(owner)
            order.append(owner)

        async def release() -> None:
            nonlocal released
            semaphore.release(order[released])
            released += 1
            await settle()

        tasks = [asyncio.create_task(acquire(owner)) for owner in owners]
        await settle()
        assert order == owners[:places]
        waiting = owners[places:]
        last = asyncio.create_task(acquire("last"))
        await settle()
        while not last.done():
            await release()
        assert len(order) - len(owners[:places]) <= len(set(waiting)) + 1
        while len(order) <= len(owners):
            await release()
        await asyncio.gather(*tasks)

    asyncio.run(run())


def test_an_owner_has_its_share_of_the_places_and_those_who_wait_take_turns() -> None:
    async def run() -> None:
        semaphore, order = FairSemaphore(4, share=2), ""

        async def acquire(owner: str) -> None:
            nonlocal order
            await semaphore.acquire(owner)
            order += owner

        waiting = [asyncio.create_task(acquire(owner)) for owner in "aaaaabbbbcc"]
        await settle()
        assert order == "aabb"
        waiting[3].cancel()
        for released in range(10):
            semaphore.release(order[released])
            await settle()
        assert order == "aabb" + "acb" + "acb"
        await asyncio.wait(waiting, timeout=60)
        assert semaphore._free == 4
        assert not semaphore._used

    asyncio.run(run())


def test_waiters_without_an_owner_take_turns_with_owners_and_have_no_share() -> None:
    async def run() -> None:
        semaphore, order = FairSemaphore(2, share=1), list[str | None]()

        async def acquire(owner: str | None) -> None:
            await semaphore.acquire(owner)
            order.append(owner)

        tasks = [
            asyncio.create_task(acquire(owner)) for owner in (None, None, "a", None, "a", None)
        ]
        await settle()
        assert order == [None, None]
        for released in range(6):
            semaphore.release(order[released])
            await settle()
        assert order == [None, None, "a", None, None, "a"]
        await asyncio.gather(*tasks)
        assert semaphore._free == 2
        assert not semaphore._used

    asyncio.run(run())


@pytest.mark.parametrize("owner", ["a", None])
def test_a_place_of_a_waiter_that_leaves_just_then_is_the_next_ones(owner: str | None) -> None:
    async def run() -> None:
        semaphore = FairSemaphore(2, share=1)
        for first in ("b", owner):
            await semaphore.acquire(first)
        leaving, staying = (asyncio.create_task(semaphore.acquire(owner)) for _ in range(2))
        await settle()
        semaphore.release(owner)
        leaving.cancel()
        await asyncio.wait([leaving, staying], timeout=60)
        assert leaving.cancelled()
        assert staying.result() is None
        for last in ("b", owner):
            semaphore.release(last)
        assert semaphore._free == 2
        assert not semaphore._used

    asyncio.run(run())


@pytest.mark.parametrize("owner", ["a", None])
def test_those_who_leave_are_forgotten_at_once(owner: str | None) -> None:
    async def run() -> None:
        semaphore = FairSemaphore(1)
        await semaphore.acquire(owner)
        tasks = [asyncio.create_task(semaphore.acquire(owner)) for _ in range(3)]
        await settle()
        for task in tasks:
            task.cancel()
        await settle()
        assert not semaphore._waiting

    asyncio.run(run())


def test_those_who_leave_are_passed_over_even_when_their_turn_has_come() -> None:
    async def run() -> list[str]:
        visits = Visits(FairSemaphore(1))
        tasks = [asyncio.create_task(visits.visit(f"a{n}")) for n in range(5)]
        await asyncio.sleep(0)
        tasks[2].cancel()  # while it waits
        while visits.order != ["a0"] or not tasks[0].done():
            await asyncio.sleep(0)
        tasks[1].cancel()  # it was granted a place, and has not seen that
        async with asyncio.timeout(20):
            await asyncio.gather(*tasks, return_exceptions=True)
            await visits.visit("b0")
        return visits.order

    order = asyncio.run(run())
    assert order[0] == "a0"
    assert order[-3:] == ["a3", "a4", "b0"]


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_no_place_is_lost_with_those_who_leave(leave: list[bool]) -> None:
    async def run() -> None:
        semaphore, order = FairSemaphore(1), list[int]()
        await semaphore.acquire(0)

        async def acquire(owner: int) -> None:
            await semaphore.acquire(owner)
            order.append(owner)

        tasks = [asyncio.create_task(acquire(i % 3)) for i in range(len(leave))]
        await settle()
        semaphore.release(0)  # one of them was granted the place, and does not know it yet
        for task, leaves in zip(tasks, leave, strict=True):
            if leaves:
                task.cancel()
        released = 0
        for _ in leave:
            await settle()
            if len(order) > released:
                semaphore.release(order[released])
                released += 1
        await settle()
        assert released == leave.count(False)
        await asyncio.wait_for(semaphore.acquire("another"), 60)

    asyncio.run(run())
