"""The longest wait for a probe beside long work."""

import threading

import pytest

from bench.serve.stalls import longest_pause


def test_the_longest_probe_counts_and_the_work_is_done() -> None:
    now, probes = 0.0, threading.Semaphore(0)
    seconds = iter((1.0, 7.0, 2.0))
    clock_of = threading.current_thread()

    def probe() -> None:
        nonlocal now
        assert threading.current_thread() is not clock_of, "the work has a thread to itself"
        now += next(seconds, 0.0)
        probes.release()

    def work() -> None:
        for _ in range(3):
            assert probes.acquire(timeout=60)

    assert longest_pause(probe, work, lambda: now) == 7.0


def test_work_that_fails_ends_the_probes() -> None:
    def fail() -> None:
        raise ConnectionError("hung up")

    with pytest.raises(ConnectionError, match="hung up"):
        longest_pause(lambda: None, fail)
