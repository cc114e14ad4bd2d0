"""How long a server waits for Redis in tests that are about something else."""

from sruserve.server.streams.redis.timing import RedisTiming

# Longer than any process of a busy machine stands still.
GENEROUS = RedisTiming(lease_ms=90_000, command_seconds=90, reply_seconds=90)
