"""How large a step may be."""

from math import inf
from random import Random

import pytest

from sruserve.server.engine.scheduling.step_time import StepTime


def test_a_fast_device_takes_all_streams_at_once() -> None:
    times = StepTime(4096, 64)
    for _ in range(20):
        times.learn(4096, 4096, 0.009)
    assert times.rows == 4096


def test_a_slow_one_takes_as_many_as_a_short_step_has() -> None:
    times = StepTime(4096, 64)
    for _ in range(20):
        times.learn(1500, 4 * 1500, 4 * 0.15)  # a tenth of a millisecond each
    assert 480 < times.rows < 520


def test_a_short_step_has_rows_for_10_ms_or_for_8_times_what_it_takes_by_itself() -> None:
    """Each row takes 0.1 ms."""
    for own, short, rows in (0.001, 90, 490), (0.004, 280, 460), (0.01, 400, 400):
        times = StepTime(4096, 64)
        for _ in range(200):
            times.learn(1, 1, own + 0.0001)
            times.learn(300, 300, own + 0.03)
        assert times.short_rows == pytest.approx(short, rel=0.05)
        assert times.rows == pytest.approx(rows, rel=0.05)


def test_a_slow_first_step_is_forgotten_if_none_as_small_follows() -> None:
    times = StepTime(4096, 64)
    times.learn(8, 8, 0.2)
    for _ in range(200):
        times.learn(128, 128, 0.008)
        times.learn(640, 640, 0.04)
    assert times.rows > 600


def test_small_steps_that_wait_for_a_grammar_make_few_large_steps_too_long() -> None:
    """A step takes 1.5 ms and 0.1 ms for each row; small ones wait for 40 ms more."""
    times, too_long = StepTime(4096, 64), 0
    for _ in range(100):
        times.learn(1, 1, 0.0415)
        times.learn(128, 128, 0.0142)
    for _ in range(40):
        rows = times.rows
        seconds = 0.0015 + 0.0001 * rows
        too_long += seconds > 0.1
        times.learn(rows, rows, seconds)
    assert too_long <= 12
    assert 0.02 < 0.0015 + 0.0001 * times.rows < 0.06


def test_noise_takes_no_share_from_a_tenant_with_many_rows() -> None:
    """A step takes 10 ms and 0.1 ms for each row, a tenth more or less."""
    times, noise = StepTime(4096, 64), Random(1)
    for rows in [1] * 40 + [64] * 2000:
        times.learn(rows, rows, (0.010 + 0.0001 * rows) * noise.uniform(0.9, 1.1))
    assert times.shared(2, 5) > 80


def test_a_step_of_some_streams_is_allowed_however_slow_the_device_is() -> None:
    times = StepTime(4096, 64)
    assert times.rows == 4096  # nothing is known yet
    times.learn(3, 48, 30.0)
    assert times.rows == 64
    for _ in range(20):
        times.learn(128, 128, 60.0)
    assert times.rows == 64
    assert StepTime(16, 64).rows == 16


def test_it_recovers_when_steps_are_fast_again() -> None:
    times = StepTime(1000, 64)
    times.learn(1, 1, 5.0)
    times.learn(500, 500, 5.0)
    assert times.rows == 64
    for _ in range(40):
        times.learn(1, 1, 0.001)
        times.learn(times.rows, times.rows, 0.001)
    assert times.rows == 1000


def test_a_step_that_waited_for_a_processor_says_little() -> None:
    times = StepTime(4096, 64)
    for step in range(100):
        times.learn(128, 128, 0.0064 if step % 4 == 0 else 0.3)
    assert times.rows > 128


def test_one_step_that_takes_seconds_lowers_the_bound_at_once() -> None:
    """Rows may suddenly take much longer: in a large vocabulary, by other sampling parameters."""
    times = StepTime(4096, 64)
    for _ in range(20):
        times.learn(1000, 1000, 0.02)
    assert times.rows > 2000
    times.learn(2000, 2000, 1.0)
    assert times.rows == 100


def test_small_fast_steps_between_large_slow_ones_excuse_none() -> None:
    """Short requests of others come between, and what they take says nothing of large steps."""
    times = StepTime(4096, 64)
    for _ in range(20):
        times.learn(1000, 1000, 0.02)
    for _ in range(4):
        assert times.rows > 512
        times.learn(512, 512, 0.25)
        times.learn(1, 1, 0.001)
    assert times.rows == 102


def test_a_first_step_may_be_bounded_and_later_ones_grow() -> None:
    times, rows = StepTime(4096, 64, first_rows=64), list[int]()
    while times.rows < 4096:
        rows.append(times.rows)
        times.learn(times.rows, times.rows, 0.001)
    assert rows == [64, 128, 256, 512, 1024, 2048]


def test_a_part_of_a_step_is_one_of_its_time() -> None:
    times = StepTime(4096, 64)
    assert times.shared(2, 1) == 4096  # nothing is known yet
    for _ in range(40):
        times.learn(128, 128, 0.0142)
        times.learn(1, 16, 16 * 0.0015)
    assert times.shared(2, 1) in range(15, 18)  # 1.5 ms for one row, and 0.1 ms for each more
    assert times.shared(3, 1) in range(29, 33)
    assert times.shared(2, 64) in range(141, 144)
    assert times.shared(100, 100) == 4096


def test_the_steps_within_a_time_follow_the_rows() -> None:
    time = StepTime(4096, 64)
    assert time.steps_within(0.01, 1) == inf
    for _ in range(50):
        time.learn(1, 1, 0.001)
        time.learn(1000, 1000, 0.002)
    assert time.steps_within(0.01, 1) == pytest.approx(10, rel=0.05)
    assert time.steps_within(0.01, 1000) == pytest.approx(5, rel=0.05)
