"""Real worker processes, small ones, that die, stop and hang in every way."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.server.observing import until


@contextmanager
def supervising(
    folder: Path, manner: str = "beats", drain_seconds: float = 30
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.server.supervised", str(folder), manner, str(drain_seconds)],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        for pid in workers(folder):
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=300)


def workers(folder: Path) -> set[int]:
    """All workers that ever were."""
    return {int(file.name) for file in folder.iterdir() if file.name.isdigit()}


def output_of(process: subprocess.Popen[str]) -> str:
    _, output = process.communicate(timeout=300)
    return output


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_all_workers_gently(tmp_path: Path, number: int) -> None:
    with supervising(tmp_path) as process:
        until(lambda: len(workers(tmp_path)) == 2, 60)
        process.send_signal(number)
        output_of(process)
        assert process.returncode == 0
        assert not any(psutil.pid_exists(pid) for pid in workers(tmp_path))


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_worker_that_is_stopped_or_killed_is_replaced_and_the_other_is_not(
    tmp_path: Path, number: int
) -> None:
    with supervising(tmp_path) as process:
        until(lambda: len(workers(tmp_path)) == 2, 60)
        victim, other = workers(tmp_path)
        os.kill(victim, number)
        until(lambda: len(workers(tmp_path)) == 3, 60)
        assert not psutil.pid_exists(victim)
        assert psutil.pid_exists(other)
        process.send_signal(signal.SIGTERM)
        output = output_of(process)
        assert process.returncode == 0
        assert output.count("no sign of life") == (number == signal.SIGSTOP)


def test_what_does_not_drain_is_killed(tmp_path: Path) -> None:
    with supervising(tmp_path, "never", drain_seconds=1) as process:
        until(lambda: len(workers(tmp_path)) == 2, 60)
        process.send_signal(signal.SIGTERM)
        assert "2 workers do not stop: killing them" in output_of(process)
        assert process.returncode == 1
        assert not any(psutil.pid_exists(pid) for pid in workers(tmp_path))


def test_a_second_ctrl_c_reaches_the_workers(tmp_path: Path) -> None:
    with supervising(tmp_path, "stays") as process:
        until(lambda: len(workers(tmp_path)) == 2, 60)
        process.send_signal(signal.SIGINT)
        until(lambda: len(list(tmp_path.glob("*-signalled"))) == 2, 60)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output_of(process)
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("manner", "reason", "lives"),
    [
        ("dies", "workers ended soon after their start", 2),
        ("fails", "a worker could not start", 2),
    ],
)
def test_the_supervisor_ends_with_a_reason_when_its_workers_cannot_live(
    tmp_path: Path, manner: str, reason: str, lives: int
) -> None:
    with supervising(tmp_path, manner) as process:
        assert reason in output_of(process)
        assert process.returncode == 1
        assert len(workers(tmp_path)) <= lives
