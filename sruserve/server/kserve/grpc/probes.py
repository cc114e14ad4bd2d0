"""Probes over gRPC: short calls without a key, with places of their own."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sruserve.server.budget import Budget
from sruserve.server.errors import InputTooLong, ServeError, TooManyAtOnce
from sruserve.server.kserve.grpc.call import end
from sruserve.server.kserve.grpc.calls import Behaviour, hold_until_ended
from sruserve.server.kserve.grpc.reading import YieldingReads
from sruserve.server.kserve.grpc.shares import address_of
from sruserve.server.unheard import forget_frames

_PROBES, _PROBES_PER_CONNECTION = 4096, 16  # open in total, and over one connection
_WATCHES, _WATCHES_PER_CONNECTION = 1024, 8
_READS, _READ_SECONDS = 8, 0.25  # a probe's message travels with its headers
_MAX_BYTES = 1 << 10  # of a message, which is parsed on the event loop
_POLL_SECONDS = 0.2  # between two looks at the watched value


class Probes:
    """Limits the open probes of each connection, so that it leaves room for others.

    look: returns the value whose changes watchers get.
    reads: reads the probes' messages.
    """

    def __init__(self, look: Callable[[], bool]) -> None:
        self._open = Budget(_PROBES, _too_many, _PROBES_PER_CONNECTION)
        self._watches = Budget(_WATCHES, _too_many, _WATCHES_PER_CONNECTION)
        self.reads = YieldingReads(_READS, _READ_SECONDS, _too_many_silent)
        self._watched = Watched(look)

    def unary(self, answer: Callable[[bytes], Any], read: bool = True) -> Behaviour:
        """The behaviour of a probe: `answer` gets its message, or b"" if it is not read."""

        async def behave(requests: Any, context: Any) -> Any:
            del requests
            try:
                hold_until_ended(self._open.hold(1, context.peer()))
                return answer(await self._read(context) if read else b"")
            except ServeError as error:
                problem = error
            forget_frames(problem)
            await end(context, problem)
            return None

        return behave

    def watch(self, understand: Callable[[bytes], Callable[[], Any]]) -> Behaviour:
        """The behaviour of a watch: `understand` gets its message, and returns a function that
        makes the first reply and one after each change."""

        async def behave(requests: Any, context: Any) -> None:
            del requests
            try:
                hold_until_ended(self._watches.hold(1, context.peer()))
                await self._send_changes(context, understand(await self._read(context)))
            except ServeError as error:
                problem = error
            forget_frames(problem)
            await end(context, problem)

        return behave

    async def _read(self, context: Any) -> bytes:
        message = await self.reads.read(context, address_of(context.peer()))
        if len(message) > _MAX_BYTES:
            raise InputTooLong(
                f"a probe's message may have at most {_MAX_BYTES} bytes: "
                "send an empty one, or a service's name"
            )
        return message

    async def _send_changes(self, context: Any, answer: Callable[[], Any]) -> None:
        sent = None
        while True:
            with self._watched.watching() as change:
                if (now := answer()) != sent:
                    await context.write(now)
                    sent = now
                await change.wait()


class Watched:
    """A value with many watchers, which one task polls while there are any."""

    def __init__(self, look: Callable[[], bool], seconds: float = _POLL_SECONDS) -> None:
        self._change = asyncio.Event()
        self._look, self._seconds = look, seconds
        self._watchers = 0
        self._polling: asyncio.Task[None] | None = None

    @contextmanager
    def watching(self) -> Iterator[asyncio.Event]:
        """Watch the value while the block runs; the event is its next change, or a failed look."""
        self._watchers += 1
        try:
            if self._polling is None:
                self._polling = asyncio.create_task(self._poll(self._look()))
            yield self._change
        finally:
            self._watchers -= 1

    async def _poll(self, last: bool) -> None:
        try:
            while self._watchers:
                if (current := self._look()) != last:
                    last = current
                    self._wake()
                await asyncio.sleep(self._seconds)
        finally:
            self._polling = None
            self._wake()  # after a failed look, the watchers look again

    def _wake(self) -> None:
        self._change.set()
        self._change = asyncio.Event()


def _too_many() -> TooManyAtOnce:
    return TooManyAtOnce(
        f"too many probes are open: a connection may have {_PROBES_PER_CONNECTION}, and "
        f"{_WATCHES_PER_CONNECTION} watches; end some of them"
    )


def _too_many_silent() -> TooManyAtOnce:
    return TooManyAtOnce(
        "too many probes have sent no message; send a probe's message with the call"
    )
