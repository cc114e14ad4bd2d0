"""Add the forks of a stream to Redis: all of them or none, a few in each message."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from sruserve.server.errors import StoreUnavailable
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.seeds import random_bytes
from sruserve.server.streams.record import StreamRecord, key_of
from sruserve.server.streams.redis import scripts
from sruserve.server.streams.redis.client import PIPELINE_CALLS, RedisClient
from sruserve.server.streams.redis.keys import names
from sruserve.server.streams.redis.writer import StreamWriter

T = TypeVar("T")

_PIPELINE_BYTES = 1 << 20  # which Redis writes in a few milliseconds


class ForkWriter:
    """Adds forks, and deletes those that exist already if one of them cannot be added."""

    def __init__(self, client: RedisClient, writer: StreamWriter) -> None:
        self._client, self._writer = client, writer

    async def add(
        self, served: ServedModel, copies: list[StreamRecord], token: str
    ) -> list[StreamRecord]:
        """Add all forks or none. token: their state; empty: there is none."""
        adder = random_bytes().hex()
        size = max(1, min(PIPELINE_CALLS, _PIPELINE_BYTES // (len(token) + 1)))
        added: list[StreamRecord] = []
        begun = 0
        try:
            while begun < len(copies):
                part = copies[begun : begun + size]
                begun += len(part)
                added += await _uninterrupted(self._writer.add(served, part, token, adder))
            return added
        except BaseException:
            await _uninterrupted(self._delete_added(copies[:begun], adder))
            raise

    async def _delete_added(self, copies: list[StreamRecord], adder: str) -> None:
        """Delete those of some new streams that were added. If Redis fails, they expire."""
        calls = [(names(key_of(copy)), [copy.id, f"-{adder}"]) for copy in copies]
        with suppress(StoreUnavailable):
            for begin in range(0, len(calls), PIPELINE_CALLS):
                batch = calls[begin : begin + PIPELINE_CALLS]
                owner = copies[begin].tenant.id
                await self._client.run_each(scripts.DELETE, owner, batch, upkeep=True)


async def _uninterrupted(work: Coroutine[Any, Any, T]) -> T:
    """Run work to its end. A cancellation of the caller is raised only then."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
