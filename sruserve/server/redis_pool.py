"""Connections to Redis, by the address in SRUSERVE_STORE. Needs the extra `redis`."""

import re
from contextlib import suppress
from typing import Any, cast
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

    async def get_connection(self, *_: Any, **__: Any) -> Any:
        connection: Any = self.get_available_connection()  # type: ignore[no-untyped-call]
        try:
            await self.ensure_connection(connection)
        except BaseException:
            await self.release(connection)
            raise
        return connection


def redis_pool(url: str, reply_seconds: float | None = None) -> Any:
    """A pool of connections to an address. It has not connected yet.

    reply_seconds: for a reply; then the command is resent once, on another connection. None: no
        limit.

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
    retry, closed = Retry(NoBackoff(), 1), cast(Any, RuntimeError)
    retry.update_supported_errors([closed])  # uvloop's, if a connection closes during a write
    pool: Any = _Pool(
        max_connections=CONNECTIONS + UPKEEP_CONNECTIONS + 1,  # one for `memory`
        socket_timeout=reply_seconds,
        socket_connect_timeout=reply_seconds,
        retry=retry,
        **_DRIVER,
        **options,
    )
    try:
        pool.make_connection()
    except (RedisError, TypeError, ValueError):
        raise ValueError(f"has unknown options: {_ADDRESS}") from None
    return pool
