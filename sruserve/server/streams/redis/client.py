"""Run scripts in Redis, within a bounded time, with one kind of error."""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import (
    AuthenticationError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from sruserve.server.errors import StoreUnavailable
from sruserve.server.fair_semaphore import FairSemaphore
from sruserve.server.redis_pool import CONNECTIONS, UPKEEP_CONNECTIONS
from sruserve.server.streams.redis import scripts
from sruserve.server.streams.redis.connections import Connections
from sruserve.server.streams.redis.notices import Notice
from sruserve.server.streams.redis.timing import REDIS_TIMING, RedisTiming

log = logging.getLogger("sruserve.streams")

Call = tuple[list[str], list[Any]]
"""The keys and arguments of a script."""

PIPELINE_CALLS = 8  # in one message, which Redis runs in a few milliseconds
_MAX_LOGGED = 200  # characters of an error of Redis
_REFUSED = "the stream store (Redis) refuses writes; see the server's log; retry, or delete streams"
_FAILS = "Redis fails, so server-held streams are unavailable: "
_CROWDED = "too many requests wait for the stream store (Redis); retry later"
_HIDDEN = (
    "Redis does not permit INFO to the user in SRUSERVE_STORE, so the limit of its memory is "
    "unknown. Several tenants divide SRUSERVE_STREAM_BYTES among them instead. Permit +info, or "
    "set SRUSERVE_STREAM_BYTES to Redis' maxmemory. Redis says: "
)


class RedisClient:
    """Runs scripts. All failures of Redis and of the network raise `StoreUnavailable`.

    A script, or several in one message, take one connection. An owner has at most half of them.

    upkeep: the command renews, releases or deletes; such commands have connections of their own.
    unavailable: whether the last command got no usable reply.
    """

    def __init__(self, url: str, timing: RedisTiming = REDIS_TIMING) -> None:
        self._seconds = timing.command_seconds
        self._connections = Connections(url, timing.reply_seconds)
        self._redis: Any = Redis.from_pool(self._connections.pool)
        self._hashes = {
            text: self._redis.register_script(text).sha.encode() for text in scripts.ALL
        }
        counts = {False: CONNECTIONS, True: UPKEEP_CONNECTIONS}
        self._places = {
            upkeep: FairSemaphore(count, count // 2) for upkeep, count in counts.items()
        }
        self.unavailable = False
        self._notice = Notice()
        self._memory_hidden = False

    async def run(self, script: str, owner: bytes, call: Call, *, upkeep: bool = False) -> Any:
        """Run a script and return its reply. If this raises, it may have run, or may run later."""
        (reply,) = await self.run_each(script, owner, [call], upkeep=upkeep)
        return reply

    async def run_each(
        self, script: str, owner: bytes, calls: Sequence[Call], *, upkeep: bool = False
    ) -> list[Any]:
        """Run a script for each of a few calls in one message, and return its replies."""
        places = self._places[upkeep]
        if not places.acquire_now(owner):
            await self._wait_for(places, owner)
        try:
            end = asyncio.get_running_loop().time() + self._seconds
            try:
                message = _encoded(b"EVALSHA", self._hashes[script], calls)
                replies = await self._connections.exchange(message, len(calls), end)
            except NoScriptError:
                message = _encoded(b"EVAL", script.encode(), calls)
                replies = await self._connections.exchange(message, len(calls), end)
        except Exception as error:  # the client library raises anything for a malformed reply
            raise await self._failure(error) from None
        finally:
            places.release(owner)
        if self.unavailable:
            log.info("Redis answers again")
            self._notice.reset()
            self.unavailable = False
        return replies

    async def memory(self, assumed: int = 0) -> int | None:
        """The limit of Redis' memory in bytes; 0: none; None: it is unknown now.

        assumed: the limit if Redis permits no INFO.
        """
        with suppress(Exception):
            try:
                async with asyncio.timeout(self._seconds):
                    memory = int((await self._redis.info("memory")).get("maxmemory", 0))
            except NoPermissionError as error:
                if not self._memory_hidden:
                    log.warning(_HIDDEN + self._why(error))
                self._memory_hidden = True
                return assumed
            return memory if memory >= 0 else None
        return None

    def bad_reply(self) -> StoreUnavailable:
        """The error of a reply that no script gives."""
        self._notice.log(_FAILS + "its reply is not that of a script")
        return StoreUnavailable()

    async def _failure(self, error: Exception) -> StoreUnavailable:
        """Log an error of Redis or of the network; returns the error for the request."""
        if isinstance(error, ResponseError):
            if _is_demoted(error):
                with suppress(RedisError):
                    await self._connections.pool.disconnect(inuse_connections=False)
            self._notice.log(f"Redis refuses a command of server-held streams: {self._why(error)}")
            return StoreUnavailable(_REFUSED)
        self.unavailable = True
        self._notice.log(_FAILS + self._why(error))
        return StoreUnavailable()

    async def _wait_for(self, places: FairSemaphore, owner: bytes) -> None:
        """Wait for a connection that is free for an owner."""
        try:
            async with asyncio.timeout(self._seconds):
                await places.acquire(owner)
        except TimeoutError:
            raise StoreUnavailable(_CROWDED) from None

    async def close(self) -> None:
        await self._redis.aclose()

    def _why(self, error: Exception) -> str:
        # A client that sends no greeting gets "unauthenticated multibulk length".
        if isinstance(error, AuthenticationError) or "unauthenticated" in str(error):
            return "it refuses the user name and password in SRUSERVE_STORE, or requires them"
        if isinstance(error, RecursionError):
            return "its reply is nested too deeply"  # the text depends on the call at the limit
        message = str(error).partition(" script: ")[0]  # without the line of the script
        if not message and isinstance(error, TimeoutError):
            return f"no reply in {self._seconds:.0f} seconds"
        return message[:_MAX_LOGGED] or type(error).__name__


def _encoded(command: bytes, script: bytes, calls: Sequence[Call]) -> bytes:
    """Commands that run a script, in Redis' protocol. The parts are texts, bytes and integers."""
    parts = []
    for keys, arguments in calls:
        parts.append(b"*%d\r\n" % (3 + len(keys) + len(arguments)))
        for value in (command, script, len(keys), *keys, *arguments):
            part = value if isinstance(value, bytes) else str(value).encode()
            parts.append(b"$%d\r\n%b\r\n" % (len(part), part))
    return b"".join(parts)


def _is_demoted(error: ResponseError) -> bool:
    """Whether this Redis has become a replica. New connections may lead to the primary."""
    return isinstance(error, ReadOnlyError | MasterDownError) or "READONLY" in str(error)
