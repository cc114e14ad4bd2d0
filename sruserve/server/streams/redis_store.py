"""Streams in Redis: any replica serves any of them, and a restart loses none.

A stream is one hash: `head` (what is known of it), `reply` (to its last step, sealed) and the state
after each of its checkpoints, sealed as a state token. Whoever works on a stream has its lease,
renewed every second; a replica that dies loses it after three.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from secrets import token_hex
from typing import Any

from pydantic import BaseModel, ConfigDict
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from sruserve.server.api.route import off_loop
from sruserve.server.api.served import Served
from sruserve.server.engine.engine import Engine
from sruserve.server.engine.jobs import Keep, Snapshot
from sruserve.server.errors import (
    StateQuotaExceeded,
    StateRefused,
    StoreUnavailable,
    StreamExists,
    StreamExpired,
    StreamUnknown,
)
from sruserve.server.state_token import Envelope
from sruserve.server.streams import scripts
from sruserve.server.streams.held import Held
from sruserve.server.tenants import Tenant

log = logging.getLogger("sruserve.streams")

Key = tuple[bytes, str]

_LEASE_MS = 3000
_RENEW_SECONDS = 1.0
_PATIENCE_SECONDS = 2.0  # with a Redis that does not answer
_CONNECTIONS = 64
_LONG_ROW = 16 << 10  # numbers; sealing more would hold up the event loop
_GONE_MS = 24 * 3600 * 1000  # for which an expired stream is told from an unknown one


class RedisStore:
    """The streams of all servers that have the same Redis and the same state keys."""

    keep = Keep.SNAPSHOT

    def __init__(self, url: str, envelope: Envelope) -> None:
        self._envelope = envelope
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_CONNECTIONS,
            timeout=_PATIENCE_SECONDS,
            socket_timeout=_PATIENCE_SECONDS,
            socket_connect_timeout=_PATIENCE_SECONDS,
            retry=Retry(NoBackoff(), 1),
        )
        self._redis: Any = Redis.from_pool(pool)
        self._scripts = {
            text: self._redis.register_script(text)
            for text in (
                *(scripts.TAKE, scripts.READ, scripts.RENEW, scripts.ADD, scripts.COMMIT),
                *(scripts.GIVE_BACK, scripts.DELETE),
            )
        }
        self._leases: dict[Key, str] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._away = False

    async def start(self) -> None:
        self._renewing = asyncio.create_task(self._renew())

    async def stop(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewing
        await self._redis.aclose()

    async def add(self, served: Served, held: Held, start: Snapshot | None) -> Held:
        token = "" if start is None else served.seal_held_state(start)
        return await self._add(served, held, token)

    async def read(self, tenant: Tenant, stream_id: str) -> Held:
        found = await self._run(scripts.READ, (tenant.id, stream_id), [])
        return self._held(found, tenant, stream_id)

    async def take(self, tenant: Tenant, stream_id: str) -> Held | None:
        key, lease = (tenant.id, stream_id), token_hex(16)
        found = await self._run(scripts.TAKE, key, [lease, _LEASE_MS])
        if found[0] == scripts.BUSY:
            return None
        held = self._held(found, tenant, stream_id)
        self._leases[key] = lease
        return held

    async def give_back(self, held: Held) -> None:
        lease = self._leases.pop(_key(held), None)
        if lease is not None:
            idle_ms = held.idle_seconds * 1000
            with suppress(StoreUnavailable):  # the lease ends by itself
                await self._run(scripts.GIVE_BACK, _key(held), [lease, idle_ms, idle_ms + _GONE_MS])

    async def state(self, served: Served, held: Held) -> Snapshot | None:
        token = await self._token(held)
        if not token and not held.step:
            return None
        return await off_loop(len(token) > 4 * _LONG_ROW, served.open_state, token)

    async def commit(self, served: Served, held: Held, end: Snapshot) -> Held:
        if held.ended:
            return await self._commit(served, held, {})
        token = await off_loop(
            served.model.network.layout.width > _LONG_ROW, served.seal_held_state, end
        )
        return await self._commit(served, held, {_state_field(held.step): token})

    async def rewind(self, served: Served, held: Held) -> Held:
        return await self._commit(served, held, {})

    async def fork(self, served: Served, held: Held, copies: list[Held]) -> list[Held]:
        token = await self._token(held)
        added: list[Held] = []
        try:
            for copy in copies:
                added.append(await self._add(served, copy, token))  # noqa: PERF401
        except Exception:
            for copy in added:
                with suppress(StoreUnavailable, StreamUnknown, StreamExpired):
                    await self.take(copy.tenant, copy.id)
                    await self.delete(copy)
            raise
        return added

    async def delete(self, held: Held) -> None:
        lease = self._leases.pop(_key(held))
        done = await self._run(scripts.DELETE, _key(held), [lease, held.id])
        if done == scripts.NOT_MINE:
            raise StoreUnavailable

    def end(self, engine: Engine) -> None:
        del engine  # its states are in Redis, and another one of the same model continues them

    async def _add(self, served: Served, held: Held, token: str) -> Held:
        states = {_state_field(held.step): token} if token else {}
        terms = self._terms(served, held, len(states))
        arguments = [*terms, *_flat(self._fields(held) | states)]
        return await self._change(scripts.ADD, served, held, arguments)

    async def _commit(self, served: Served, held: Held, states: dict[str, str]) -> Held:
        """Make a taken stream what `held` says; states: those that are new."""
        staying = [_state_field(step) for step in held.checkpoints]
        lease = self._leases.get(_key(held), "")
        arguments = [
            *(*self._terms(served, held, 1), lease, len(staying), *staying),
            *_flat(self._fields(held) | states),
        ]
        changed = await self._change(scripts.COMMIT, served, held, arguments)
        self._leases.pop(_key(held), None)
        return changed

    async def _change(self, script: str, served: Served, held: Held, arguments: list[Any]) -> Held:
        done = await self._run(script, _key(held), arguments)
        if done == scripts.EXISTS:
            raise StreamExists("a stream of that id lives already: end it, or take another id")
        if done == scripts.NOT_MINE:
            raise StoreUnavailable("another replica has taken the stream; send the request again")
        if done >= 0:
            raise StateQuotaExceeded(
                f"the streams of this API key hold {done} bytes of state and may hold "
                f"{served.tenant.state_bytes}: delete some, or continue with state tokens"
            )
        return replace(held, expires_at=time.time() + held.idle_seconds)

    def _terms(self, served: Served, held: Held, states: int) -> list[Any]:
        """The stream's id, what its states take, what the tenant may have, how long it may idle."""
        most = served.tenant.state_bytes
        idle_ms = held.idle_seconds * 1000
        nbytes = served.model.network.layout.nbytes * states
        return [held.id, nbytes, -1 if most is None else most, idle_ms, idle_ms + _GONE_MS]

    async def _token(self, held: Held) -> str:
        """The sealed state after the last step; empty: nothing was read yet."""
        with self._explained():
            token = await self._redis.hget(_names(_key(held))[0], _state_field(held.step))
        return (token or b"").decode("ascii", "replace")

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            for key, lease in list(self._leases.items()):
                with suppress(StoreUnavailable):  # then the commit finds out
                    await self._run(scripts.RENEW, key, [lease, _LEASE_MS])

    async def _run(self, script: str, key: Key, arguments: list[Any]) -> Any:
        with self._explained():
            return await self._scripts[script](keys=_names(key), args=arguments)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """A Redis that does not do what it is asked is away; the log says so once."""
        try:
            yield
        except (RedisError, OSError) as error:
            if not self._away:
                log.error("Redis fails, and with it server-held streams: %s", error)
            self._away = True
            raise StoreUnavailable from None
        if self._away:
            log.info("Redis answers again")
        self._away = False

    def _held(self, found: list[Any], tenant: Tenant, stream_id: str) -> Held:
        """A stream of which Redis has told: how it was found, head, reply, time left."""
        if found[0] == scripts.EXPIRED:
            raise StreamExpired("the stream was idle for too long; create another one")
        if found[0] == scripts.UNKNOWN:
            raise StreamUnknown("there is no such stream, or it was deleted; create one")
        _, head, sealed, left_ms = found
        try:
            known = _Head.model_validate_json(head)
            content = bytes.fromhex(known.content)
            reply = self._envelope.open(sealed, _owner(tenant, stream_id)) if sealed else b""
        except (ValueError, StateRefused) as error:
            log.error("what Redis has of the stream is none of this server's: %s", error)
            raise StoreUnavailable from None
        return Held(
            id=stream_id,
            tenant=tenant,
            model=known.model,
            seed=known.seed,
            idle_seconds=known.idle_seconds,
            created=known.created,
            expires_at=time.time() + left_ms / 1000,
            step=known.step,
            content=content,
            reply=reply,
            ended=known.ended,
            checkpoints=known.checkpoints,
        )

    def _fields(self, held: Held) -> dict[str, str | bytes]:
        head = _Head(
            model=held.model,
            seed=held.seed,
            idle_seconds=held.idle_seconds,
            created=held.created,
            step=held.step,
            content=held.content.hex(),
            ended=held.ended,
            checkpoints=held.checkpoints,
        )
        reply = b""
        if held.reply:
            reply = self._envelope.seal(held.reply, _owner(held.tenant, held.id))
        return {"head": head.model_dump_json(), "reply": reply, "ended": str(int(held.ended))}


class _Head(BaseModel):
    """What is known of a stream, as Redis has it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    model: str
    seed: int
    idle_seconds: int
    created: int
    step: int
    content: str
    ended: bool
    checkpoints: tuple[int, ...]


def _owner(tenant: Tenant, stream_id: str) -> bytes:
    return tenant.id + stream_id.encode()


def _flat(fields: dict[str, Any]) -> list[Any]:
    return [part for pair in fields.items() for part in pair]


def _state_field(step: int) -> str:
    return f"state{step}"


def _key(held: Held) -> Key:
    return held.tenant.id, held.id


def _names(key: Key) -> list[str]:
    """The keys in Redis: the stream, its lease and tombstone; then what its tenant holds."""
    tenant, stream_id = key[0].hex(), key[1]
    of_stream = [f"sruserve:{what}:{tenant}:{stream_id}" for what in ("stream", "lease", "gone")]
    return of_stream + [f"sruserve:{what}:{tenant}" for what in ("sizes", "ends", "sum")]
