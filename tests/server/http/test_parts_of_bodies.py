"""A body that comes in many parts."""

import asyncio
import tracemalloc
from typing import Any

import pytest

from sruserve.server.http.call import HttpCall, Message
from sruserve.server.http.errors import BodyTooLarge
from sruserve.server.tasks.limits import InputLimits

PARTS = 50_000


def received(parts: int, limit: int) -> tuple[bytes, int]:
    """A body of parts of two bytes, and the most memory that was taken for it."""
    left = parts

    async def receive() -> Message:
        nonlocal left
        left -= 1
        return {"type": "http.request", "body": b"%02d" % (left % 100), "more_body": left > 0}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    async def run() -> tuple[bytes, int]:
        call = HttpCall({"headers": [], "method": "POST", "path": "/"}, receive, send)
        limits = InputLimits(limit, limit, 1, 1, 1, 1, limit, 0.0)
        tracemalloc.start()
        try:
            return await call.body(limits), tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    return asyncio.run(run())


def test_many_small_parts_take_little_more_than_their_bytes() -> None:
    body, peak_bytes = received(PARTS, 1 << 20)
    assert body == b"".join(b"%02d" % (left % 100) for left in range(PARTS - 1, -1, -1))
    assert peak_bytes < 4 * len(body)


def test_the_parts_are_read_no_longer_than_to_the_limit() -> None:
    with pytest.raises(BodyTooLarge, match="longer than 1000 bytes"):
        received(PARTS, 1000)
