"""Redis as the store of streams asks it: scripts, patience that ends, and one kind of error."""

import asyncio
import logging
from typing import Any
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoScriptError, RedisError

from sruserve.server.errors import StoreUnavailable
from sruserve.server.streams import scripts

log = logging.getLogger("sruserve.streams")

_ANSWER_SECONDS = 2.0  # then the command is sent once more, on another connection
_PATIENCE_SECONDS = 5.0  # in all, so that a Redis that stops for three seconds is waited for
_CONNECTIONS = 64
_ADDRESS = "redis://:PASSWORD@HOST:6379/0, or rediss:// for TLS"


class RedisLink:
    """Runs scripts; raises `StoreUnavailable` whatever Redis or the way to it lacks."""

    def __init__(self, url: str) -> None:
        self._redis: Any = Redis.from_pool(_pool(url))
        self._hashes = {text: self._redis.register_script(text).sha for text in scripts.ALL}
        self.away = False

    async def run(self, script: str, keys: list[str], arguments: list[Any]) -> Any:
        """What a script returns. It may have run even if this raises, now or a while later."""
        given = (len(keys), *keys, *arguments)
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                try:
                    result = await self._redis.evalsha(self._hashes[script], *given)
                except NoScriptError:
                    result = await self._redis.eval(script, *given)
        except (RedisError, OSError) as error:
            if not self.away:
                log.error("Redis fails, and with it server-held streams: %s", _why(error))
            self.away = True
            raise StoreUnavailable from None
        if self.away:
            log.info("Redis answers again")
        self.away = False
        return result

    async def close(self) -> None:
        await self._redis.aclose()


def check_address(url: str) -> None:
    """Raise `ValueError`, which does not repeat the password, for an URL that cannot be used."""
    _pool(url)


def _why(error: Exception) -> str:
    if isinstance(error, AuthenticationError):
        return "it does not take the name and password in SRUSERVE_STORE, or wants some"
    return str(error) or f"no answer in {_PATIENCE_SECONDS:.0f} seconds"


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
    pool: Any = BlockingConnectionPool(
        max_connections=_CONNECTIONS,
        timeout=None,
        socket_timeout=_ANSWER_SECONDS,
        socket_connect_timeout=_ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 1),
        **options,
    )
    try:
        pool.make_connection()
    except (RedisError, TypeError, ValueError):
        raise ValueError(f"has options that Redis' client does not know: {_ADDRESS}") from None
    return pool
