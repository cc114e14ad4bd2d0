"""A stream that outlives its end because it is in a step counts for as long as it lives."""

from dataclasses import replace
from typing import Any

import pytest
import redis

from sruserve.server.auth import Tenant
from sruserve.server.errors import InternalError, ServeError
from sruserve.server.key_entries import KeyEntry
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.streams.redis import scripts
from sruserve.server.streams.redis.keys import names
from sruserve.server.streams.service import Streams
from sruserve.server.streams.step_view import StreamView
from tests.server.streams.conftest import ACME
from tests.server.streams.redis.generous_timing import GENEROUS
from tests.server.streams.redis.test_forks import DB, only_redis
from tests.server.streams.tenants import counted_in_redis
from tests.server.streams.work import Run, write

TENANT = Tenant("outlives", KeyEntry(key=ACME))
ENDS = f"sruserve:ends:{TENANT.id.hex()}"


async def overtaken(
    streams: Streams, served: ServedModel, client: redis.Redis, stream: str
) -> None:
    """Its end is over, and a new stream counts it out."""
    assert client.zadd(ENDS, {stream: 1}) == 0
    await streams.create(served, None)
    assert client.zscore(ENDS, stream) is None


def check(client: redis.Redis, stream: str) -> None:
    """A stream counts until its key goes, but for a few milliseconds of other commands."""
    end: Any = client.zscore(ENDS, stream)
    key: Any = client.pexpiretime(f"sruserve:stream:{TENANT.id.hex()}:{stream}")
    assert end >= key - 100
    assert client.zscore(ENDS.replace("ends", "expired"), stream) is None
    assert client.hexists(ENDS.replace("ends", "sizes"), stream)
    counted_in_redis(client, TENANT)


@only_redis
@pytest.mark.parametrize("then", ["refused", "renewed", "committed"])
def test_a_stream_that_is_counted_out_during_its_step_is_counted_again(
    run: Run,
    redis_port: int,
    then: str,
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue.with_states("characters").for_tenant(TENANT)
        client = redis.Redis(port=redis_port, db=DB)
        stream = (await streams.create(served, None)).id
        await streams.step(served, stream, 1, b"a", write)

        async def work(view: StreamView) -> bytes:
            await overtaken(streams, served, client, stream)
            if then == "renewed":
                store: Any = streams._store
                ((key, taken),) = store._leases.taken.items()
                call = names(key), [stream, taken.lease, 5000]
                assert await store._client.run(scripts.RENEW, key[0], call) == -1
                check(client, stream)
            if then == "refused":
                await write(view)
                raise InternalError("no reply")
            return await write(view)

        if then == "refused":
            with pytest.raises(ServeError):
                await streams.step(served, stream, 2, b"a", work)
        else:
            await streams.step(served, stream, 2, b"a", work)
        check(client, stream)
        client.flushdb()
        client.close()

    run(test, timing=replace(GENEROUS, renew_seconds=3600))


@only_redis
def test_who_takes_a_stream_near_its_end_puts_its_count_off_too(
    run: Run,
    redis_port: int,
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue.with_states("characters").for_tenant(TENANT)
        client = redis.Redis(port=redis_port, db=DB)
        stream = (await streams.create(served, None, idle_seconds=40)).id

        async def work(view: StreamView) -> bytes:
            assert client.pttl(f"sruserve:stream:{TENANT.id.hex()}:{stream}") > 40_000
            check(client, stream)
            return await write(view)

        await streams.step(served, stream, 1, b"a", work)
        check(client, stream)
        client.flushdb()
        client.close()

    run(test)


@only_redis
def test_a_stream_whose_own_commit_counts_it_out_counts_whole(
    run: Run,
    redis_port: int,
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue.with_states("characters").for_tenant(TENANT)
        client = redis.Redis(port=redis_port, db=DB)
        stream = (await streams.create(served, None)).id

        async def work(view: StreamView) -> bytes:
            client.zadd(ENDS, {stream: 1})
            return await write(view)

        await streams.step(served, stream, 1, b"a", work)
        check(client, stream)
        client.flushdb()
        client.close()

    run(test)


NO_COUNTS = ("", "-5", "007", "abc", "inf", "nan", "1e308", "9" * 16, str(2**63 - 1), "9" * 40)


@only_redis
@pytest.mark.parametrize("what", ["sum", "sizes"])
def test_what_is_no_count_is_counted_anew_and_its_stream_can_be_deleted(
    run: Run,
    redis_port: int,
    what: str,
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue.with_states("characters").for_tenant(TENANT)
        client = redis.Redis(port=redis_port, db=DB)
        tables: dict[str, Any] = {name: ENDS.replace("ends", name) for name in ("sum", "sizes")}

        def spoil(stream: str, wrong: str) -> None:
            if what == "sum":
                client.set(tables["sum"], wrong)
            else:
                client.hset(tables["sizes"], stream, wrong)

        for wrong in NO_COUNTS:
            stream, other = [(await streams.create(served, None)).id for _ in range(2)]
            spoil(stream, wrong)
            await streams.step(served, stream, 1, b"a", write)
            size: Any = client.hget(tables["sizes"], stream)
            assert 1000 < int(size) < 10_000, wrong
            total: Any = client.get(tables["sum"])
            assert int(size) <= int(total) < 20_000, wrong
            spoil(stream, wrong)
            await streams.rewind(served, stream, 0)
            for each in (stream, other):
                spoil(each, wrong)
                await streams.delete(TENANT, each)
            assert not client.keys(f"*:stream:{TENANT.id.hex()}:*")
            client.flushdb()
        client.close()

    run(test)


@only_redis
def test_very_many_states_that_nobody_wrote_go_with_the_next_step(
    run: Run,
    redis_port: int,
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue.with_states("characters").for_tenant(TENANT)
        client = redis.Redis(port=redis_port, db=DB)
        stream = (await streams.create(served, None)).id
        key = f"sruserve:stream:{TENANT.id.hex()}:{stream}"
        client.hset(key, mapping={f"state{i}": "x" for i in range(10, 20_010)})
        await streams.step(served, stream, 1, b"a", write)
        assert set(client.hkeys(key)) == {b"by", b"head", b"reply", b"ended", b"state1"}
        check(client, stream)
        client.flushdb()
        client.close()

    run(test)
