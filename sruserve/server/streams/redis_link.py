"""Redis as the store of streams asks it: scripts, patience that ends, and one kind of error."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
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
from sruserve.server.streams import scripts
from sruserve.server.streams.notices import Notice
from sruserve.server.streams.places import Places

_DRIVER: dict[str, Any] = {}
with suppress(ImportError):  # a Redis client that is older reads its version once by itself
    from redis.driver_info import DriverInfo

    _DRIVER["driver_info"] = DriverInfo()  # else each connection reads the version from disk

log = logging.getLogger("sruserve.streams")

Call = tuple[list[str], list[Any]]
"""The keys and arguments of a script."""

_ANSWER_SECONDS = 2.0  # then the command is sent once more, on another connection
_PATIENCE_SECONDS = 5.0  # in all, so that a Redis that stops for three seconds is waited for
# For what requests ask; and for what keeps streams, or frees them, and should never wait for that.
_CONNECTIONS, _UPKEEP_CONNECTIONS = 48, 16
_MOST_TOLD = 200  # characters of what Redis says
_REFUSED = "the stream store (Redis) refuses writes; see the server's log; retry, or delete streams"
_FAILS = "Redis fails, and with it server-held streams: "
_CROWDED = "too many requests wait for the stream store (Redis); retry later"
_HIDDEN = (
    "Redis refuses INFO to the user in SRUSERVE_STORE, so it does not say how much memory it may "
    "have, and with several tenants SRUSERVE_STREAM_BYTES of it are divided among them: permit "
    "+info, or set SRUSERVE_STREAM_BYTES to Redis' maxmemory; Redis says: "
)
_ADDRESS = "redis://:PASSWORD@HOST:6379/0, or rediss:// for TLS"


class RedisLink:
    """Runs scripts; raises `StoreUnavailable` whatever Redis or the way to it lacks.

    Each command, or message of several, takes a connection, of which an owner has half at most.

    upkeep: whether it keeps or frees what is there: such commands have connections of their own.
    """

    def __init__(self, url: str) -> None:
        self._redis: Any = Redis.from_pool(_pool(url))
        self._hashes = {text: self._redis.register_script(text).sha for text in scripts.ALL}
        self._places = {False: Places(_CONNECTIONS), True: Places(_UPKEEP_CONNECTIONS)}
        self.away = False
        self._notice = Notice()
        self._hidden = False

    async def run(self, script: str, owner: bytes, call: Call, *, upkeep: bool = False) -> Any:
        """What a script returns. It may have run even if this raises, now or a while later."""
        keys, arguments = call
        given = (len(keys), *keys, *arguments)
        async with self._asking(owner, upkeep):
            try:
                return await self._redis.evalsha(self._hashes[script], *given)
            except NoScriptError:
                return await self._redis.eval(script, *given)

    async def run_each(
        self, script: str, owner: bytes, calls: Sequence[Call], *, upkeep: bool = False
    ) -> list[Any]:
        """What a script returns for each of a few calls, which are sent together."""
        async with self._asking(owner, upkeep):
            try:
                return await self._together(script, calls)
            except NoScriptError:
                return await self._together(script, calls, whole=True)

    async def _together(
        self, script: str, calls: Sequence[Call], *, whole: bool = False
    ) -> list[Any]:
        """Send calls in one message. whole: the script itself, which Redis may not know."""
        pipeline = self._redis.pipeline(transaction=False)
        run, name = (pipeline.eval, script) if whole else (pipeline.evalsha, self._hashes[script])
        for keys, arguments in calls:
            run(name, len(keys), *keys, *arguments)
        results: list[Any] = await pipeline.execute(raise_on_error=False)
        for result in results:
            if isinstance(result, RedisError):
                raise result
        return results

    async def memory(self, hidden: int = 0) -> int | None:
        """The bytes that Redis may have; 0: as many as there are; None: it does not say now.

        hidden: what they count as where Redis refuses to say it.
        """
        with suppress(Exception), _cancellable():
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    memory = int((await self._redis.info("memory")).get("maxmemory", 0))
            except NoPermissionError as error:
                if not self._hidden:
                    log.warning(_HIDDEN + _why(error))
                self._hidden = True
                return hidden
            return memory if memory >= 0 else None
        return None

    def garbled(self) -> StoreUnavailable:
        """The error of an answer that no script gives."""
        self._notice.tell(_FAILS + "it answers what it was not asked")
        return StoreUnavailable()

    @asynccontextmanager
    async def _asking(self, owner: bytes, upkeep: bool) -> AsyncIterator[None]:
        """Wait for a connection, and not for long, then for what is done on it."""
        places = self._places[upkeep]
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await places.take(owner)
        except TimeoutError:
            raise StoreUnavailable(_CROWDED) from None
        try:
            with self._failing():
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    try:
                        yield
                    except ResponseError as error:
                        if _is_demoted(error):
                            await self._redis.connection_pool.disconnect(inuse_connections=False)
                        raise
        finally:
            places.give_back(owner)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Make one kind of error of all that Redis or the way to it lacks."""
        try:
            with _cancellable():
                yield
        except ResponseError as error:
            self._notice.tell(f"Redis refuses what server-held streams need: {_why(error)}")
            raise StoreUnavailable(_REFUSED) from None
        except Exception as error:  # its client raises anything for an answer that makes no sense
            self.away = True
            self._notice.tell(_FAILS + _why(error))
            raise StoreUnavailable from None
        if self.away:
            log.info("Redis answers again")
            self._notice.forget()
        self.away = False

    async def close(self) -> None:
        await self._redis.aclose()


@contextmanager
def _cancellable() -> Iterator[None]:
    """Raise `CancelledError` after a command in which the task was cancelled.

    Redis' client sends with `asyncio.wait_for`, which in Python 3.11 drops a cancellation that it
    gets when the command has just been sent.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        yield
    finally:
        if task.cancelling() > before:
            raise asyncio.CancelledError


def check_address(url: str) -> None:
    """Raise `ValueError`, which does not repeat the password, for an URL that cannot be used."""
    _pool(url)


def _is_demoted(error: ResponseError) -> bool:
    """Whether this Redis is a replica now, and new connections may lead to the primary."""
    return isinstance(error, ReadOnlyError | MasterDownError) or "READONLY" in str(error)


def _why(error: Exception) -> str:
    if isinstance(error, AuthenticationError):
        return "it does not take the name and password in SRUSERVE_STORE, or wants some"
    told = str(error).partition(" script: ")[0]  # and not which line of it
    if not told and isinstance(error, TimeoutError):
        return f"no answer in {_PATIENCE_SECONDS:.0f} seconds"
    return told[:_MOST_TOLD] or type(error).__name__


def _pool(url: str) -> Any:
    """Connections to an address, none of which is made yet."""
    try:
        options, parts = parse_url(url), urlsplit(url)
        if parts.path.strip("/") and not parts.path[1:].isdecimal():
            raise ValueError
    except ValueError:
        raise ValueError(
            f"should be {_ADDRESS}; what is special in URLs is written with % in a password"
        ) from None
    for name in parse_qs(parts.query):
        if name != "db" and not (name.startswith("ssl_") and parts.scheme == "rediss"):
            raise ValueError(f"takes no option {name!r}, but `db`, and `ssl_…` with rediss://")
    retry, ended = Retry(NoBackoff(), 1), cast(Any, RuntimeError)
    retry.update_supported_errors([ended])  # uvloop's, of a connection that it is writing to
    pool: Any = BlockingConnectionPool(
        max_connections=_CONNECTIONS + _UPKEEP_CONNECTIONS + 1,  # one for `memory`
        timeout=None,
        socket_timeout=_ANSWER_SECONDS,
        socket_connect_timeout=_ANSWER_SECONDS,
        retry=retry,
        **_DRIVER,
        **options,
    )
    try:
        pool.make_connection()
    except (RedisError, TypeError, ValueError):
        raise ValueError(f"has options that Redis' client does not know: {_ADDRESS}") from None
    return pool
