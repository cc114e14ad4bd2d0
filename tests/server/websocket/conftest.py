"""What holds around each test of sockets."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No client can write to the log."""
    yield
    assert not caplog.get_records("call")
