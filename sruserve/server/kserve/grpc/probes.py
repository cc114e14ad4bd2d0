"""Probes over gRPC: short calls of anybody, without a key, that take nothing from other calls."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sruserve.server.budget import Budget
from sruserve.server.errors import InputTooLong, ServeError, TooManyAtOnce
from sruserve.server.kserve.grpc.call import end
from sruserve.server.kserve.grpc.calls import Behaviour, until_ended
from sruserve.server.kserve.grpc.reading import YieldingReads
from sruserve.server.unheard import forget_frames

_PROBES, _PROBES_OF_ONE = 4096, 16  # open in all, and over one connection
_WATCHES, _WATCHES_OF_ONE = 1024, 8
_READS, _READ_SECONDS = 8, 0.25  # a probe's message travels with its headers
_MOST_BYTES = 1 << 10  # of a message, which is parsed on the event loop
_LOOK_SECONDS = 0.2  # between two looks at what is watched


class Probes:
    """The open probes, of which a connection leaves room for those of others.

    look: what watchers are told of when it changes.
    """

    def __init__(self, look: Callable[[], bool]) -> None:
        self._open = Budget(_PROBES, _too_many, _PROBES_OF_ONE)
        self._watches = Budget(_WATCHES, _too_many, _WATCHES_OF_ONE)
        self._reads = YieldingReads(_READS, _READ_SECONDS, _too_many_silent)
        self._watched = Watched(look)

    def unary(self, answer: Callable[[bytes], Any], read: bool = True) -> Behaviour:
        """The behaviour of a probe: `answer` gets its message, or b"" where it is not read."""

        async def behave(requests: Any, context: Any) -> Any:
            del requests
            try:
                until_ended(self._open.hold(1, context.peer()))
                return answer(await self._read(context) if read else b"")
            except ServeError as error:
                problem = error
            forget_frames(problem)
            await end(context, problem)
            return None

        return behave

    def watch(self, understand: Callable[[bytes], Callable[[], Any]]) -> Behaviour:
        """The behaviour of a watch: `understand` gets its message, and what it returns makes what
        is told at first and after each change."""

        async def behave(requests: Any, context: Any) -> None:
            del requests
            try:
                until_ended(self._watches.hold(1, context.peer()))
                await self._tell(context, understand(await self._read(context)))
            except ServeError as error:
                problem = error
            forget_frames(problem)
            await end(context, problem)

        return behave

    async def _read(self, context: Any) -> bytes:
        address, _, _ = context.peer().rpartition(":")  # a client has any number of ports
        message = await self._reads.read(context, address)
        if len(message) > _MOST_BYTES:
            raise InputTooLong(f"a probe's message may have at most {_MOST_BYTES} bytes")
        return message

    async def _tell(self, context: Any, answer: Callable[[], Any]) -> None:
        told = None
        while True:
            with self._watched.watching() as change:
                if (now := answer()) != told:
                    await context.write(now)
                    told = now
                await change.wait()


class Watched:
    """Something that many watch and one task looks at, as long as anybody watches."""

    def __init__(self, look: Callable[[], bool], seconds: float = _LOOK_SECONDS) -> None:
        self._change = asyncio.Event()
        self._look, self._seconds = look, seconds
        self._watchers = 0
        self._looking: asyncio.Task[None] | None = None

    @contextmanager
    def watching(self) -> Iterator[asyncio.Event]:
        """Look at it while the block runs; the event is its next change, or a look that fails."""
        self._watchers += 1
        try:
            if self._looking is None:
                self._looking = asyncio.create_task(self._keep_looking(self._look()))
            yield self._change
        finally:
            self._watchers -= 1

    async def _keep_looking(self, seen: bool) -> None:
        try:
            while self._watchers:
                if (now := self._look()) != seen:
                    seen = now
                    self._wake()
                await asyncio.sleep(self._seconds)
        finally:
            self._looking = None
            self._wake()  # whoever still watches, because a look failed, looks again

    def _wake(self) -> None:
        self._change.set()
        self._change = asyncio.Event()


def _too_many() -> TooManyAtOnce:
    return TooManyAtOnce(
        f"too many probes are open: a connection may have {_PROBES_OF_ONE}, and {_WATCHES_OF_ONE} "
        "watches; end some of them"
    )


def _too_many_silent() -> TooManyAtOnce:
    return TooManyAtOnce(
        "too many probes have sent no message; send a probe's message with the call"
    )
