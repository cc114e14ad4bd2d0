"""Authenticate requests by API keys, and limit the resources of each key's tenant."""

import logging
import math
import time
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any, Self

from sruserve.server.budget import Budget
from sruserve.server.errors import RateLimited, StateQuotaExceeded, Unauthorized
from sruserve.server.key_entries import KeyEntry

log = logging.getLogger("sruserve.server")

STREAM_BYTES = 1 << 30  # the default limit of a tenant's streams
_BEARER = "bearer "
_ROUNDING = 1e-9
_UNUSED = (
    "limits of a later key of tenant %r are not used: those of its first key count, and the keys "
    "in SRUSERVE_API_KEYS precede those in SRUSERVE_API_KEYS_FILE; set them at the first key"
)


class TokenBucket:
    """A token bucket with the capacity of one second.

    A full bucket allows a larger amount, which becomes a debt that time pays off. So at most one
    request is ahead of the rate, and the others wait at most for that one.
    """

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate, self._capacity, self._clock = rate, max(rate, 1.0), clock
        self._level, self._at = self._capacity, clock()

    def take(self, amount: float) -> float:
        """Take an amount and return 0, or take nothing and return the seconds to wait."""
        wait = self._seconds_until(min(amount, self._capacity))
        if not wait:
            self._level -= amount
        return wait

    def refund(self, amount: float) -> None:
        """Return a part of an amount that was taken."""
        self._level += amount

    def debt_seconds(self) -> float:
        """The seconds until the bucket is full if there is a debt; else 0."""
        return self._seconds_until(self._capacity) if self._seconds_until(0) else 0.0

    def _seconds_until(self, level: float) -> float:
        now = self._clock()
        self._level = min(self._capacity, self._level + (now - self._at) * self._rate)
        self._at = now
        missing = level - self._level
        return missing / self._rate if missing > _ROUNDING * self._capacity else 0.0


class Spent:
    """Takes steps from a bucket while a block computes them; unused steps are returned.

    used: the computed steps; None: unknown, so all of them count.
    """

    __slots__ = ("_bucket", "_limit", "used")

    def __init__(self, bucket: TokenBucket | None, limit: int) -> None:
        self._bucket, self._limit = bucket, limit
        self.used: int | None = 0

    def __enter__(self) -> Self:
        if self._bucket is not None and (wait := self._bucket.take(self._limit)):
            raise _limited("steps", wait)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bucket is not None and self.used is not None:
            self._bucket.refund(self._limit - self.used)


_UNCOUNTED = Spent(None, 0)  # shared by all tenants without a rate: `used` is never read


class Tenant:
    """The owner of one or more API keys: states belong to it, and limits count its use.

    id: 16 bytes to which its states are bound; zeros for the anonymous tenant.
    owner: the owner of its work in budgets; None: without API keys there are no shares.
    state_budget: limits the bytes of its streams in this process and of its open sockets.
    """

    def __init__(
        self,
        name: str = "",
        entry: KeyEntry | None = None,
        clock: Callable[[], float] = time.monotonic,
        state_bytes: int = STREAM_BYTES,
    ) -> None:
        self.name, self.owner = name, name or None
        self.id = sha256(b"tenant\0" + name.encode()).digest()[:16] if name else bytes(16)
        rates = (entry.requests_per_second, entry.steps_per_second) if entry else (None, None)
        self._requests, self._steps = (TokenBucket(rate, clock) if rate else None for rate in rates)
        quota = (entry and entry.state_bytes) or state_bytes
        self.state_budget = Budget(quota, self._over_quota, strict=True)
        self._priority = entry.priority if entry else 0

    @property
    def state_bytes(self) -> int:
        """The limit of its server-held streams in bytes, including all overhead."""
        return self.state_budget.limit

    def admit(self) -> None:
        """Count a request, or raise `RateLimited` with the time to wait."""
        if self._steps is not None and (wait := self._steps.debt_seconds()):
            raise _limited("steps", wait)
        if self._requests is not None and (wait := self._requests.take(1)):
            raise _limited("requests", wait)

    def priority(self, requested: int) -> int:
        """The priority of a request: the requested one, but no sooner than the tenant's."""
        return max(requested, self._priority)

    def spend(self, limit: int) -> Spent:
        """Take up to `limit` steps for the work in a `with` block; raises `RateLimited`."""
        return Spent(self._steps, limit) if self._steps is not None else _UNCOUNTED

    def _over_quota(self) -> StateQuotaExceeded:
        return over_quota(self.state_budget.used, self.state_budget.limit)


class Tenants:
    """All tenants of a server.

    anonymous: the tenant of all clients if there are no API keys.
    count: the number of tenants with keys.
    state_bytes: the limit of a tenant's streams if its key has none.
    """

    def __init__(
        self,
        entries: Iterable[KeyEntry] = (),
        state_bytes: int = STREAM_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.anonymous = Tenant(state_bytes=state_bytes)
        by_name: dict[str, Tenant] = {}
        # Clients cannot choose the digest of a key, so the time of a look-up reveals nothing.
        self._by_digest: dict[bytes, Tenant] = {}
        limits: dict[str, dict[str, Any]] = {}
        for entry in entries:  # the first key of a tenant sets its limits
            if entry.tenant not in by_name:
                by_name[entry.tenant] = Tenant(entry.tenant, entry, clock, state_bytes)
                limits[entry.tenant] = _limits(entry)
            elif _limits(entry).items() - limits[entry.tenant].items():
                log.warning(_UNUSED, entry.tenant)
            self._by_digest[_digest(entry.key)] = by_name[entry.tenant]
        tenants = by_name.values() or [self.anonymous]
        self.quotas = [tenant.state_bytes for tenant in tenants]
        self.count = len(by_name)

    def authenticate(self, authorization: str | None) -> Tenant:
        """The tenant of an `Authorization` header; raises `Unauthorized`."""
        if not self._by_digest:
            return self.anonymous
        header = authorization or ""
        key = header[len(_BEARER) :].strip() if header[: len(_BEARER)].lower() == _BEARER else ""
        tenant = self._by_digest.get(_digest(key))
        if tenant is None:
            raise Unauthorized(
                "this server needs an API key: send 'Authorization: Bearer KEY'"
                + ("; the server does not know the key in this request" if key else "")
            )
        return tenant


def over_quota(used: int, quota: int) -> StateQuotaExceeded:
    """The error of a tenant whose streams have reached their limit."""
    return StateQuotaExceeded(
        f"the streams of this API key use {used} of {quota} bytes, including all overhead: delete "
        "some, or continue with state tokens"
    )


def _limited(unit: str, wait: float) -> RateLimited:
    error = RateLimited(
        f"this API key has used up its {unit} per second; send the request again in "
        f"{wait:.1f} seconds"
    )
    error.retry_after_seconds = math.ceil(wait)
    return error


def _limits(entry: KeyEntry) -> dict[str, Any]:
    """The limits of a key that are not defaults."""
    return entry.model_dump(exclude={"key", "tenant"}, exclude_defaults=True)


def _digest(key: str) -> bytes:
    return sha256(key.encode()).digest()
