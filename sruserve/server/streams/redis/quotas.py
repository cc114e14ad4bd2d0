"""The bytes that each tenant may have in Redis, whose memory has a limit of its own."""

import asyncio
from collections.abc import Sequence

from sruserve.server.auth import Tenant
from sruserve.server.streams.redis.client import RedisClient
from sruserve.server.streams.shares import fair_part

_SPARE_PARTS = 4  # one of four parts of Redis' memory is for its clients and others' data


class RedisQuotas:
    """The quotas of the tenants.

    Tenants divide a Redis that has less memory than all quotas together, so that none of them
    fills it.

    assumed_memory: the limit of Redis' memory if Redis permits no INFO and there are several
        tenants; 0: none.
    part: the bytes that each tenant may have now, unless its quota is smaller.
    """

    def __init__(self, quotas: Sequence[int], assumed_memory: int = 0) -> None:
        self._quotas, self.part = quotas, max(quotas)
        self._assumed_memory = assumed_memory if len(quotas) > 1 else 0

    def max_bytes_of(self, tenant: Tenant) -> int:
        """The bytes that a tenant may have in Redis."""
        return min(tenant.state_bytes, self.part)

    async def follow_memory(self, client: RedisClient, seconds: float) -> None:
        """Divide Redis' memory among the tenants, and look at its limit again and again."""
        while True:
            memory = await client.memory(self._assumed_memory)
            if memory is not None:  # else keep the last one
                limit = memory - memory // _SPARE_PARTS if memory else sum(self._quotas)
                self.part = fair_part(limit, self._quotas)
            await asyncio.sleep(seconds)
