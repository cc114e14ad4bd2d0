"""The names of a stream's keys and fields in Redis."""

from sruserve.server.streams.record import Key


def names(key: Key) -> list[str]:
    """The `KEYS` of a script: the stream, its lease and tombstone, and its tenant's tables."""
    tenant = key[0].hex()
    stream = f"{tenant}:{key[1]}"
    return [
        f"sruserve:stream:{stream}",
        f"sruserve:lease:{stream}",
        f"sruserve:gone:{stream}",
        f"sruserve:sizes:{tenant}",
        f"sruserve:ends:{tenant}",
        f"sruserve:sum:{tenant}",
        f"sruserve:expired:{tenant}",
    ]


def state_field(step: int) -> str:
    """The field of the state after a step."""
    return f"state{step}"
