"""A bound on what is held at a time."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sruserve.server.budget import Budget, Hold
from sruserve.server.errors import Overloaded


def test_what_is_released_can_be_held_again() -> None:
    budget = Budget(10, Overloaded)
    with budget.hold(8), pytest.raises(Overloaded):
        budget.hold(3)
    with budget.hold(3):
        assert budget.used == 3
    assert budget.used == 0


def test_a_holder_that_is_alone_may_hold_any_amount() -> None:
    budget = Budget(10, Overloaded)
    alone = budget.hold(9)
    alone.grow(90)
    with pytest.raises(Overloaded):
        budget.hold(1)
    alone.release()
    budget.hold(1)


def test_an_owner_leaves_room_for_others() -> None:
    budget = Budget(10, Overloaded, share=6)
    budget.hold(5, "greedy")
    with pytest.raises(Overloaded):
        budget.hold(2, "greedy")
    budget.hold(5, "modest")


def test_owners_that_yield_leave_room_however_many_they_are() -> None:
    budget = Budget(64, Overloaded, share=32, yields=True)
    for owner, largest in (("a", 32), ("b", 16), ("c", 8)):
        for _ in range(largest):
            budget.hold(1, owner)
        with pytest.raises(Overloaded):
            budget.hold(1, owner)
    budget.hold(8, "d")


def test_a_hold_that_moves_to_an_owner_that_yields_counts_once() -> None:
    budget = Budget(64, Overloaded, yields=True)
    budget.hold(16, "a")
    hold = budget.hold(16, "address")
    hold.move_to("a")
    with pytest.raises(Overloaded):
        budget.hold(1, "a")
    assert (hold.amount, budget.used) == (16, 32)


def test_a_refused_growth_changes_nothing() -> None:
    budget = Budget(10, Overloaded)
    other, hold = budget.hold(4), budget.hold(5)
    with pytest.raises(Overloaded):
        hold.grow(2)
    assert (hold.amount, budget.used) == (5, 9)
    other.release()
    hold.grow(2)


def test_a_hold_moves_to_another_owner_or_stays_as_it_was() -> None:
    budget = Budget(20, Overloaded, share=6)
    hold, other = budget.hold(4, "before"), budget.hold(3, "after")
    with pytest.raises(Overloaded):
        hold.move_to("after")
    with pytest.raises(Overloaded):
        budget.hold(3, "before")
    other.release()
    hold.move_to("after")
    budget.hold(6, "before")
    with pytest.raises(Overloaded):
        budget.hold(3, "after")
    assert budget.used == 10


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8), st.booleans()), max_size=40))
def test_the_sum_is_always_that_of_the_holders(steps: list[tuple[int, int, bool]]) -> None:
    budget = Budget(20, Overloaded, share=12)
    holds: list[Hold] = []
    for owner, amount, releases in steps:
        if releases and holds:
            holds.pop().release()
            continue
        with suppress(Overloaded):
            holds.append(budget.hold(amount, owner or None))
        assert budget.used == sum(hold.amount for hold in holds)
        assert budget.used <= 20


def test_what_is_released_stays_empty() -> None:
    budget = Budget(10, Overloaded)
    hold = budget.hold(4)
    hold.release()
    hold.grow(3)
    hold.resize(5)
    assert (hold.amount, budget.used) == (0, 0)


def test_nobody_exceeds_a_strict_budget_or_its_share_even_alone() -> None:
    budget = Budget(10, Overloaded, share=6, strict=True)
    with pytest.raises(Overloaded):
        budget.hold(11)
    with pytest.raises(Overloaded):
        budget.hold(7, "greedy")
    hold = budget.hold(6, "greedy")
    with pytest.raises(Overloaded):
        hold.grow(1)
    assert (hold.amount, budget.used) == (6, 6)


def test_who_is_about_to_release_may_hold_as_much_beyond_the_bounds() -> None:
    budget = Budget(10, Overloaded, share=6, strict=True)
    before, other = budget.hold(6, "owner"), budget.hold(4)
    with pytest.raises(Overloaded):
        budget.hold(6, "owner", beyond=5)
    after = budget.hold(6, "owner", beyond=6)
    before.release()
    with pytest.raises(Overloaded):
        after.resize(7, beyond=0)
    other.release()
    assert budget.used == 6
