"""Jobs begin together, in groups, and an error of one neither blocks nor hides the others."""

import threading
from collections.abc import Callable

import pytest

from sruserve.check.errors import NoAnswer
from sruserve.check.together import at_once


def test_no_job_passes_its_start_before_all_of_its_group_have_come_there() -> None:
    here: list[int] = []
    seen: list[int] = []

    def job(ready: Callable[[], None]) -> int:
        here.append(1)
        ready()
        seen.append(len(here))
        return len(seen)

    results = at_once([job] * 6, limit=3)
    assert len(results) == 6
    assert seen == [3, 3, 3, 6, 6, 6]


def test_results_are_in_the_order_of_the_jobs() -> None:
    first_may_end = threading.Event()

    def first(ready: Callable[[], None]) -> str:
        ready()
        assert first_may_end.wait(60)
        return "first"

    def second(ready: Callable[[], None]) -> str:
        ready()
        first_may_end.set()
        return "second"

    assert at_once([first, second], limit=2) == ["first", "second"]


def test_an_error_before_the_start_lets_the_others_end_and_is_raised_then() -> None:
    ended: list[int] = []

    def fails(ready: Callable[[], None]) -> None:
        raise NoAnswer("the server closed the connection")

    def works(ready: Callable[[], None]) -> None:
        ready()
        ended.append(1)

    with pytest.raises(NoAnswer, match="closed"):
        at_once([works, fails, works], limit=3)
    assert len(ended) == 2
