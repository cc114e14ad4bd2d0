"""Connections to Redis, by the address in SRUSERVE_STORE. Needs the extra `redis`."""

import asyncio
import re
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import ConnectionPool
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

_DRIVER: dict[str, Any] = {}
with suppress(ImportError):  # an older client library reads its version once by itself
    from redis.driver_info import DriverInfo

    _DRIVER["driver_info"] = DriverInfo()  # else each connection reads the version from disk

# Connections for requests, and for the upkeep of streams, which never waits for requests.
CONNECTIONS, UPKEEP_CONNECTIONS = 48, 16
_DATABASE = re.compile(r"[0-9]{1,9}")
_ADDRESS = "redis://:PASSWORD@HOST:6379/0, or rediss:// for TLS"


class _Pool(ConnectionPool):
    """The client library's pool without its locks and statistics.

    Its own lets a command wait for a connection: `RedisClient` has a place for each.
    """

    async def get_connection(self, *_: Any, end: float | None = None, **__: Any) -> Any:
        """A connection that is ready. end: when to give up, in the event loop's time."""
        connection: Any = self.get_available_connection()  # type: ignore[no-untyped-call]
        try:
            if not _is_ready(connection):
                async with asyncio.timeout_at(end):
                    await self.ensure_connection(connection)
        except BaseException:
            await self.release(connection)
            raise
        return connection

    async def release(self, connection: Any) -> None:
        if getattr(connection, "_should_reconnect", False):  # an older client library has it not
            await connection.disconnect()
        self._in_use_connections.remove(connection)
        self._available_connections.append(connection)


def _is_ready(connection: Any) -> bool:
    """Whether a connection is open, and nothing is in it that the next reply would begin with."""
    reader = connection._reader
    return reader is not None and connection._socket_is_empty() and not reader.at_eof()


def redis_pool(url: str, connect_seconds: float | None = None) -> Any:
    """A pool of connections to an address. It has not connected yet.

    Whoever waits for a reply bounds the wait: the library would begin a task for each command.

    connect_seconds: for a connection; None: no limit.

    Raises `ValueError` for an unusable URL. Its message does not repeat the password.
    """
    try:
        options, parts = parse_url(url), urlsplit(url)
        databases = [parts.path.strip("/") or "0", *parse_qs(parts.query).get("db", [])]
        if parts.port == 0 or not all(map(_DATABASE.fullmatch, databases)):
            raise ValueError
    except ValueError:
        raise ValueError(
            f"should be {_ADDRESS}; escape special characters in the password with %"
        ) from None
    for name in parse_qs(parts.query):
        if name != "db" and not (name.startswith("ssl_") and parts.scheme == "rediss"):
            raise ValueError(f"takes no option {name!r}, only `db`, and `ssl_…` with rediss://")
    pool: Any = _Pool(
        max_connections=CONNECTIONS + UPKEEP_CONNECTIONS + 1,  # one for `memory`
        socket_timeout=None,
        socket_connect_timeout=connect_seconds,
        retry=Retry(NoBackoff(), 1),
        **_DRIVER,
        **options,
    )
    try:
        pool.make_connection()
    except (RedisError, TypeError, ValueError):
        raise ValueError(f"has unknown options: {_ADDRESS}") from None
    return pool
