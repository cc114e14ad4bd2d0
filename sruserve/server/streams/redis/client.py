"""Run scripts in Redis, within a bounded time, with one kind of error."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

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
from sruserve.server.redis_pool import CONNECTIONS, UPKEEP_CONNECTIONS, redis_pool
from sruserve.server.streams.redis import scripts
from sruserve.server.streams.redis.notices import Notice
from sruserve.server.streams.redis.timing import REDIS_TIMING, RedisTiming

log = logging.getLogger("sruserve.streams")

T = TypeVar("T")
Call = tuple[list[str], list[Any]]
"""The keys and arguments of a script."""

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

    A command, or a pipeline of several, takes one connection. An owner has at most half of them.

    upkeep: the command renews, releases or deletes; such commands have connections of their own.
    unavailable: whether the last command got no usable reply.
    """

    def __init__(self, url: str, timing: RedisTiming = REDIS_TIMING) -> None:
        self._seconds = timing.command_seconds
        self._redis: Any = Redis.from_pool(redis_pool(url, timing.reply_seconds))
        self._hashes = {text: self._redis.register_script(text).sha for text in scripts.ALL}
        counts = {False: CONNECTIONS, True: UPKEEP_CONNECTIONS}
        self._places = {
            upkeep: FairSemaphore(count, count // 2) for upkeep, count in counts.items()
        }
        self.unavailable = False
        self._notice = Notice()
        self._memory_hidden = False

    async def run(self, script: str, owner: bytes, call: Call, *, upkeep: bool = False) -> Any:
        """Run a script and return its reply. If this raises, it may have run, or may run later."""
        keys, arguments = call
        parameters = (len(keys), *keys, *arguments)

        async def command() -> Any:
            try:
                return await self._execute("EVALSHA", self._hashes[script], *parameters)
            except NoScriptError:
                return await self._execute("EVAL", script, *parameters)

        return await self._bounded(command, owner, upkeep)

    async def _execute(self, *command: Any) -> Any:
        """Send a command, once more on a new connection if the first one fails.

        The client library's `execute_command` does the same, and encodes each part by itself: a
        step of a stream sends two commands of fifty parts.
        """
        pool, message = self._redis.connection_pool, _encoded(command)
        connection = await pool.get_connection()

        async def exchange() -> Any:
            await connection.send_packed_command(message)
            return await connection.read_response()

        try:
            return await connection.retry.call_with_retry(
                exchange, lambda _: connection.disconnect()
            )
        finally:
            await pool.release(connection)

    async def run_each(
        self, script: str, owner: bytes, calls: Sequence[Call], *, upkeep: bool = False
    ) -> list[Any]:
        """Run a script for each of a few calls in one pipeline, and return its replies."""

        async def commands() -> list[Any]:
            try:
                return await self._run_pipeline(script, calls)
            except NoScriptError:
                return await self._run_pipeline(script, calls, send_text=True)

        return await self._bounded(commands, owner, upkeep)

    async def _run_pipeline(
        self, script: str, calls: Sequence[Call], *, send_text: bool = False
    ) -> list[Any]:
        """Send calls in one message. send_text: with the script, which Redis may not know."""
        pipeline = self._redis.pipeline(transaction=False)
        run, name = (
            (pipeline.eval, script) if send_text else (pipeline.evalsha, self._hashes[script])
        )
        for keys, arguments in calls:
            run(name, len(keys), *keys, *arguments)
        results: list[Any] = await pipeline.execute(raise_on_error=False)
        for result in results:
            if isinstance(result, RedisError):
                raise result
        return results

    async def memory(self, assumed: int = 0) -> int | None:
        """The limit of Redis' memory in bytes; 0: none; None: it is unknown now.

        assumed: the limit if Redis permits no INFO.
        """
        with suppress(Exception), _cancellable():
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

    async def _bounded(
        self, command: Callable[[], Coroutine[Any, Any, T]], owner: bytes, upkeep: bool
    ) -> T:
        """Wait for a connection, then run a command on it in bounded time."""
        places = self._places[upkeep]
        if not places.acquire_now(owner):
            try:
                async with asyncio.timeout(self._seconds):
                    await places.acquire(owner)
            except TimeoutError:
                raise StoreUnavailable(_CROWDED) from None
        try:
            return await self._with_one_error(command)
        finally:
            places.release(owner)

    async def _with_one_error(self, command: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a command. All failures of Redis and of the network raise `StoreUnavailable`."""
        try:
            with _cancellable():
                async with asyncio.timeout(self._seconds):
                    try:
                        result = await command()
                    except ResponseError as error:
                        if _is_demoted(error):
                            await self._redis.connection_pool.disconnect(inuse_connections=False)
                        raise
        except ResponseError as error:
            self._notice.log(f"Redis refuses a command of server-held streams: {self._why(error)}")
            raise StoreUnavailable(_REFUSED) from None
        except Exception as error:  # the client library raises anything for a malformed reply
            self.unavailable = True
            self._notice.log(_FAILS + self._why(error))
            raise StoreUnavailable from None
        if self.unavailable:
            log.info("Redis answers again")
            self._notice.reset()
        self.unavailable = False
        return result

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


@contextmanager
def _cancellable() -> Iterator[None]:
    """Raise `CancelledError` after a command during which the task was cancelled.

    The client library sends with `asyncio.wait_for`. In Python 3.11 that drops a cancellation
    which arrives just after the command was sent.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        yield
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


def _encoded(command: Sequence[Any]) -> bytes:
    """A command, of texts, bytes and integers, in Redis' protocol."""
    parts = [b"*%d\r\n" % len(command)]
    for value in command:
        part = value if isinstance(value, bytes) else str(value).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(part), part))
    return b"".join(parts)


def _is_demoted(error: ResponseError) -> bool:
    """Whether this Redis has become a replica. New connections may lead to the primary."""
    return isinstance(error, ReadOnlyError | MasterDownError) or "READONLY" in str(error)
