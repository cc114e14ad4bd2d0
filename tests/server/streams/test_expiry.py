"""The heap that says which stream is due."""

from hypothesis import given
from hypothesis import strategies as st

from sruserve.server.streams.memory.expiry import Expiry

changes = st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 50)), max_size=60)


@given(changes, st.integers(0, 50))
def test_exactly_what_is_due_is_taken_once_and_in_order(
    made: list[tuple[int, int | None]], now: int
) -> None:
    expiry: Expiry[int] = Expiry()
    expected: dict[int, int] = {}
    for key, at in made:
        if at is None:
            expiry.remove(key)
            expected.pop(key, None)
        else:
            expiry.put(key, at)
            expected[key] = at
    taken = [*expiry.take(now, 3), *expiry.take(now, 100)]
    assert sorted(taken) == sorted(key for key, at in expected.items() if at <= now)
    assert [expected[key] for key in taken] == sorted(expected[key] for key in taken)
    assert expiry.take(now, 100) == []
    assert len(expiry) == len(expected) - len(taken)


def test_what_is_put_off_and_removed_for_ever_takes_no_memory() -> None:
    expiry: Expiry[int] = Expiry()
    for time in range(10_000):
        expiry.put(1, time + 1_000_000)
        expiry.put(time, time + 1_000_000)
        expiry.remove(time)
    assert len(expiry._heap) < 100


class Moment(float):
    """A time that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Moment.compared += 1
        return float(self) == other

    def __lt__(self, other: float) -> bool:
        Moment.compared += 1
        return float(self) < other

    __hash__ = float.__hash__


def test_no_stream_that_is_put_off_costs_as_much_as_many() -> None:
    expiry: Expiry[int] = Expiry()
    max_compared = 0
    for number in range(5000):
        before = Moment.compared
        expiry.put(number % 1000, Moment(1000 + number % 60))
        max_compared = max(max_compared, Moment.compared - before)
    assert max_compared < 100
    assert len(expiry.take(2000, 5000)) == 1000
