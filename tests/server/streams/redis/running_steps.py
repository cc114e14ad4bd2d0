"""Steps that run while something happens to Redis."""

from typing import Any

import redis

from tests.server.streams.conftest import Replicas, key_of

STEP: dict[str, Any] = {"prompt": "To be", "max_tokens": 20, "temperature": 0}


def taken(client: redis.Redis, stream: str) -> bool:
    return bool(client.exists(key_of(stream, "lease")))


def active(replicas: Replicas) -> int:
    """How many requests the servers have."""
    return sum(application.lifecycle.active for application in replicas.applications)
