"""How long servers have streams in Redis, and how long they wait for it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RedisTiming:
    """The times of a server whose streams are in Redis.

    lease_ms: how long a server has a stream after its last renewal: longer than a Redis that stops
        for three seconds, plus a renewal.
    renew_seconds: between two renewals.
    command_seconds: for a command: longer than a Redis that stops for three seconds.
    reply_seconds: for a reply; then the command is resent once, on another connection.
    memory_seconds: between two looks at the limit of Redis' memory.
    """

    lease_ms: int = 5000
    renew_seconds: float = 1.0
    command_seconds: float = 5.0
    reply_seconds: float = 2.0
    memory_seconds: float = 10.0


REDIS_TIMING = RedisTiming()
