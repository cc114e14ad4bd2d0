"""What holds around each test of sockets."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No client can write to the log, which has uvicorn's warnings and not its other lines."""
    yield
    records = caplog.get_records("call")
    assert not [record for record in records if record.levelno >= logging.WARNING]
