"""Silent reads make way for others, and one look serves all who watch."""

import asyncio
from typing import Any

import grpc
import pytest

from sruserve.server.errors import TooManyAtOnce
from sruserve.server.kserve.grpc.probes import Watched
from sruserve.server.kserve.grpc.reading import YieldingReads


async def settle() -> None:
    """Let all tasks go on as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)


class Context:
    """A call whose message never comes, and that ends when the test says so.

    after: and when this is set.
    """

    def __init__(self, after: asyncio.Event | None = None) -> None:
        self.ended = False
        self._after = after
        self._message: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def read(self) -> bytes:
        return await self._message

    def done(self) -> bool:
        return self.ended

    def set_trailing_metadata(self, _: object) -> None: ...

    async def abort(self, *_: object) -> None:
        if self._after is not None:
            await self._after.wait()
        self.ended = True
        self._message.set_exception(grpc.aio.AbortError())


class Prompt(Context):
    """A call whose message is there."""

    async def read(self) -> bytes:
        await asyncio.sleep(0)
        return b"message"


def reads() -> YieldingReads:
    return YieldingReads(8, 3600, lambda: TooManyAtOnce("too many"))


def silent(reads: YieldingReads, contexts: list[Context], owner: str) -> asyncio.Future[Any]:
    """Begin reads, whose errors nobody wants."""
    begun = (reads.read(context, owner) for context in contexts)
    return asyncio.gather(*begun, return_exceptions=True)


def test_a_read_whose_message_is_there_waits_for_no_silent_one() -> None:
    async def run() -> None:
        readers, contexts = reads(), [Context() for _ in range(300)]
        begun = silent(readers, contexts, "crowd")
        await settle()
        while sum(context.ended for context in contexts) < 300 - 4:
            await settle()
        assert await readers.read(Prompt(), "crowd") == b"message"
        assert not any(context.ended for context in contexts[-3:])
        begun.cancel()

    asyncio.run(run())


def test_silent_reads_are_bounded_while_their_calls_do_not_end() -> None:
    async def run() -> None:
        readers, end = reads(), asyncio.Event()
        contexts = [Context(end) for _ in range(300)]
        begun = silent(readers, contexts, "crowd")
        waiting = asyncio.create_task(readers.read(Prompt(), "another"))
        await settle()
        assert not waiting.done()
        end.set()
        await settle()
        assert await waiting == b"message"
        begun.cancel()

    asyncio.run(run())


def test_the_owner_with_most_silent_reads_makes_way() -> None:
    async def run() -> None:
        readers, slow = reads(), Context()
        begun = [silent(readers, [slow], "another")]
        for _ in range(100):
            begun.append(silent(readers, [Context()], "crowd"))
            await settle()
        assert not slow.ended
        for each in begun:
            each.cancel()

    asyncio.run(run())


def test_one_look_serves_all_watchers_and_a_change_wakes_them() -> None:
    async def run() -> None:
        looks, value, woken = 0, True, 0

        def look() -> bool:
            nonlocal looks
            looks += 1
            return value

        watched = Watched(look, seconds=3600)

        async def watch() -> None:
            nonlocal woken
            with watched.watching() as change:
                await change.wait()
            woken += 1

        watchers = [asyncio.create_task(watch()) for _ in range(1000)]
        await settle()
        assert (looks, woken) == (2, 0)  # to know it, and the first for a change
        for each in watchers:
            each.cancel()
        await asyncio.wait(watchers)
        watched = Watched(look, seconds=0.001)
        watchers = [asyncio.create_task(watch()) for _ in range(1000)]
        await settle()
        value = False
        await asyncio.wait_for(asyncio.gather(*watchers), 60)
        await asyncio.sleep(0.05)
        before = looks
        await asyncio.sleep(0.05)
        assert looks == before  # nobody watches

    asyncio.run(run())


def test_a_look_that_fails_wakes_its_watchers_and_the_next_one_looks_again() -> None:
    async def run() -> None:
        looks, value = 0, True

        def look() -> bool:
            nonlocal looks
            looks += 1
            if looks in (2, 3):
                raise OSError("no look")
            return value

        watched = Watched(look, seconds=0.001)
        with watched.watching() as change:
            await asyncio.wait_for(change.wait(), 60)
        with pytest.raises(OSError, match="no look"), watched.watching():
            pass
        with watched.watching() as change:
            value = False
            await asyncio.wait_for(change.wait(), 60)
        await asyncio.sleep(0.05)
        before = looks
        await asyncio.sleep(0.05)
        assert looks == before  # nobody watches

    asyncio.run(run())
