"""When workers are replaced and killed, and when the supervisor gives up, by a clock of its own."""

import pytest

from sruserve.server.supervision import Do, RestartPolicy, Silence, Supervision

POLICY = RestartPolicy()


def supervision(workers: int = 1, now: float = 0.0) -> Supervision:
    """All of its workers were started, and are ready."""
    made = Supervision(workers, POLICY, now)
    for place in range(workers):
        assert made.look(place, now) is Do.START
        made.started(place, now)
        made.beat(place)
    return made


def looked_every_second(watched: Supervision, begin: int, end: int) -> list[Do]:
    return [watched.look(0, now) for now in range(begin, end)]


def test_a_worker_that_lived_long_is_replaced_at_once() -> None:
    watched = supervision()
    assert watched.ended(0, 3600) == 0
    assert watched.look(0, 3600) is Do.START


def test_a_worker_that_soon_dies_is_replaced_after_ever_longer_waits() -> None:
    watched, now, waits = supervision(100), 0.0, []
    for _ in range(9):
        waits.append(watched.ended(0, now))
        assert watched.look(0, now + waits[-1] - 0.1) is Do.NOTHING
        now += waits[-1]
        assert watched.look(0, now) is Do.START
        watched.started(0, now)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_long_life_ends_a_row_of_short_ones() -> None:
    watched, now = supervision(100), 0.0
    for _ in range(4):
        now += watched.ended(0, now)
        watched.started(0, now)
    assert watched.ended(0, now + 60) == 0
    watched.started(0, now + 60)
    assert watched.ended(0, now + 61) == 1


def test_five_deaths_for_each_worker_are_hopeless_if_they_come_soon() -> None:
    watched, now = supervision(2), 0.0
    for death in range(10):
        assert watched.hopeless(now) is None
        watched.ended(death % 2, now)
        watched.started(death % 2, now + 1)
        now += 2
    assert watched.hopeless(now) == "10 workers ended soon after their start within 20 s"
    assert watched.hopeless(700) is None, "that is long ago"


def test_one_bad_place_does_not_end_what_the_others_serve() -> None:
    watched, now = supervision(4), 0.0
    while now < 24 * 3600:
        now += 5 + watched.ended(0, now + 5)
        watched.started(0, now)
        assert watched.hopeless(now) is None


def test_a_silent_worker_is_killed_after_the_limit_and_not_before() -> None:
    watched = supervision()
    actions = looked_every_second(watched, 1, 63)
    assert actions == [Do.NOTHING] * 60 + [Do.KILL] * 2


def test_a_worker_that_beats_is_left_alone_however_rarely_it_has_its_turn() -> None:
    watched = supervision()
    for begin in range(0, 3600, 50):
        assert set(looked_every_second(watched, begin, begin + 50)) == {Do.NOTHING}
        watched.beat(0)


def test_a_worker_that_loads_has_half_an_hour() -> None:
    watched = Supervision(1, POLICY, 0)
    watched.started(0, 0)
    actions = looked_every_second(watched, 0, 1803)
    assert actions.index(Do.KILL) == 1801
    assert not watched.proven


def test_after_its_replacement_a_worker_has_time_to_load_again() -> None:
    watched = supervision()
    watched.ended(0, 100)
    watched.started(0, 100)
    assert set(looked_every_second(watched, 100, 1800)) == {Do.NOTHING}


@pytest.mark.parametrize("pause", [10, 3600])
def test_a_supervisor_that_was_stopped_itself_blames_nobody(pause: int) -> None:
    silence = Silence(0)
    assert silence.look(1) == 1
    assert silence.look(1 + pause) == 3
    silence.sign_of_life()
    assert silence.look(2 + pause) == 1
