"""Names of expired streams in Redis: few, and small."""

import time

import pytest
import redis

from sruserve.server.auth import Tenant
from sruserve.server.key_entries import KeyEntry
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.streams.service import Streams
from tests.server.observing import until
from tests.server.streams.conftest import ACME, OwnRedis, key_of
from tests.server.streams.redis.test_forks import DB, only_redis
from tests.server.streams.replies import code
from tests.server.streams.work import Run


def test_expired_streams_leave_names_in_redis_and_nothing_else(own_redis: OwnRedis) -> None:
    replicas, _, port = own_redis
    streams = [replicas.create(idle_seconds=1) for _ in range(20)]
    with redis.Redis(port=port) as client:
        until(lambda: not client.keys("*:stream:*"))
        until(lambda: code(replicas.get(streams[0])) == "stream_expired")
        alive = replicas.create()
        for stream in streams:
            assert code(replicas.get(stream)) == "stream_expired"
        tables = {f"sruserve:{name}:{'0' * 32}" for name in ("sizes", "ends", "sum", "expired")}
        assert {key.decode() for key in client.scan_iter()} == tables | {key_of(alive)}
        replicas.delete(alive)
        assert client.get(f"sruserve:sum:{'0' * 32}") == b"0"


def test_no_more_names_of_expired_streams_stay_than_are_allowed(
    own_redis: OwnRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas, _, port = own_redis
    stream = replicas.create()
    with redis.Redis(port=port) as client:
        expired = f"sruserve:expired:{'0' * 32}"
        now = time.time() * 1000
        names = {f"old{i}": now - 20_000 + i for i in range((1 << 14) + 10)}
        client.zadd(expired, names)
        assert replicas.step(stream, 1, prompt="a").status_code == 200
        assert client.zcard(expired) == 1 << 14
        assert client.zscore(expired, "old0") is None
        assert code(replicas.get("old10")) == "stream_expired"
        assert code(replicas.get("old9")) == "stream_unknown"


@only_redis
def test_the_names_of_expired_streams_take_a_small_part_of_what_a_tenant_may_have(
    run: Run,
    redis_port: int,
) -> None:
    limit = 1 << 20
    tenant = Tenant("expires", KeyEntry(key=ACME, state_bytes=limit))

    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue.with_states("characters").for_tenant(tenant)
        with redis.Redis(port=redis_port, db=DB) as client:
            expired = f"sruserve:expired:{tenant.id.hex()}"
            names = [f"{i:03}" + "ä" * 250 for i in range(300)]
            for name in names:
                await streams.create(served, None, name)
                client.zadd(f"sruserve:ends:{tenant.id.hex()}", {name: time.time() * 1000 - 1})
            record = await streams.create(served, None)
            assert client.zrange(expired, 0, -1) == [name.encode() for name in names[-16:]]
            assert client.memory_usage(expired) < limit / 64
            client.zadd(f"sruserve:ends:{tenant.id.hex()}", dict.fromkeys(names[:200], 1))
            for _ in range(3):
                await streams.rewind(served, record.id, 0)
            assert client.zcard(expired) == 16, "what may always be done adds no names"
            client.flushdb()

    run(test)
