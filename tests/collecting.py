"""The order in which the processes of a run collect the tests, where none is compiled yet.

pytest compiles each file of tests with its own assertions and keeps the result, which takes a core
8 seconds for all files. Processes that begin together would each compile every file.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
_LAST_FOLDER = TESTS / "tracing"
_TIMEOUT_SECONDS = 120.0  # the first may have been killed


@contextmanager
def first_alone(config: pytest.Config, timeout_seconds: float = _TIMEOUT_SECONDS) -> Iterator[None]:
    """Let the first process collect before the others, if tests have to be compiled."""
    worker = getattr(config, "workerinput", {}).get("workerid")
    if worker is None or is_compiled() or sys.dont_write_bytecode:
        yield
        return
    done = Path(config.getoption("basetemp")).parent / "collected"
    if worker == "gw0":
        try:
            yield
        finally:
            done.touch()
    else:
        wait_for(done, timeout_seconds)
        yield


def is_compiled(folder: Path = _LAST_FOLDER) -> bool:
    """Whether an earlier run has compiled tests, also those that are compiled last."""
    return any((folder / "__pycache__").glob("test_*-pytest-*.pyc"))


def wait_for(file: Path, seconds: float) -> None:
    """Wait until a file is there, at most so long."""
    until = time.monotonic() + seconds
    while not file.exists() and time.monotonic() < until:
        time.sleep(0.05)
