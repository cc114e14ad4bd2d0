"""Two tenants of one server, and what Redis counts for one."""

import json
from typing import Any

import httpx
import redis

from sruserve.server.auth import Tenant
from tests.server.keys import bearer
from tests.server.streams.conftest import ACME, OTHER
from tests.server.streams.replies import code

TWO = json.dumps([{"tenant": "acme", "key": ACME}, {"tenant": "other", "key": OTHER}])
STEP = {"prompt": "a", "max_tokens": 1}


class Client:
    """A tenant of one server."""

    def __init__(self, client: httpx.Client, key: str) -> None:
        self._client, self._headers = client, bearer(key) if key else {}

    def post(self, path: str, /, **body: Any) -> httpx.Response:
        return self._client.post(f"/v1/streams{path}", json=body, headers=self._headers)

    def create(self, **body: Any) -> str:
        reply = self.post("", **body)
        assert reply.status_code == 201, reply.text
        return str(reply.json()["id"])

    def steps(self, stream: str, first: int, last: int) -> None:
        for number in range(first, last + 1):
            reply = self.post(f"/{stream}/steps", step=number, **STEP)
            assert reply.status_code == 200, reply.text

    def delete(self, stream: str) -> httpx.Response:
        return self._client.delete(f"/v1/streams/{stream}", headers=self._headers)

    def greed(self) -> tuple[str, int]:
        """Fork, create and step until all of it is refused; the last code, and how many streams."""
        mine = [self.create()]
        self.steps(mine[0], 1, 1)
        for n in (256, 1):
            while (full := self.post(f"/{mine[0]}/fork", n=n)).status_code == 201:
                mine += [each["id"] for each in full.json()["data"]]
        for each in mine[:20]:
            for number in range(1, 20):
                self.post(f"/{each}/steps", step=number, **STEP)
        while (full := self.post("")).status_code == 201:
            mine.append(full.json()["id"])
        assert full.status_code == 429, full.text
        return code(full), len(mine)


def goes_on(tenant: Client, stream: str, done: int) -> None:
    """A stream goes on for more steps than it has checkpoints, and another one begins."""
    tenant.steps(stream, done + 1, done + 10)
    another = tenant.create()
    tenant.steps(another, 1, 10)
    assert tenant.delete(another).status_code == 200


def counted_in_redis(client: redis.Redis, tenant: Tenant) -> None:
    sizes: Any = client.hgetall(f"sruserve:sizes:{tenant.id.hex()}")
    for name, size in sizes.items():
        stream: Any = client.hgetall(f"sruserve:stream:{tenant.id.hex()}:{name.decode()}")
        fields = [len(value) for field, value in stream.items() if field != b"by"]
        assert int(size) == 800 + 5 * len(name) + sum(96 + n + n // 4 for n in fields)
    total = int(client.get(f"sruserve:sum:{tenant.id.hex()}") or 0)
    assert total == sum(map(int, sizes.values()))
