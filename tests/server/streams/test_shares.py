"""Each tenant has a part, of memory and of an engine's rows, and leaves others theirs."""

import random

import pytest

from sruserve.server.errors import InternalError, ServeError, TooManyAtOnce
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.streams.memory.store import MemoryStore
from sruserve.server.streams.service import Streams
from sruserve.server.streams.shares import fair_part, fair_shares
from sruserve.server.streams.step import Work
from sruserve.server.streams.step_view import StreamView
from tests.server.streams.work import Run, until_rows, write


@pytest.mark.parametrize("run", ["memory"], indirect=True)
@pytest.mark.parametrize("numbered", [False, True])
def test_a_tenant_whose_part_of_the_rows_is_full_can_end_its_streams(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    numbered: bool,
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, store = catalogue.with_states("characters"), streams._store
        assert isinstance(store, MemoryStore)
        names = [(await streams.create(served, None)).id for _ in range(3)]
        for name in names:
            await streams.step(served, name, 1, b"a", write)
        monkeypatch.setattr(store._rows.of(served.engine), "share", 3)
        with pytest.raises(TooManyAtOnce):
            await streams.step(served, names[0], 2, b"b", write)
        number = 2 if numbered else None
        await streams.step(served, names[0], number, b"b", write, last=True)
        assert store._rows.of(served.engine).used == 2
        await streams.step(served, names[1], 2, b"b", write)
        for name in names[1:] + names[:1] * numbered:
            await streams.delete(served.tenant, name)
        await until_rows(served, 0)

    run(test)


def test_parts_are_as_large_as_they_can_be_and_never_more_than_there_is() -> None:
    chance = random.Random(5)
    for _ in range(300):
        limit = chance.randrange(12, 1000)
        amounts = [chance.randrange(1, 400) for _ in range(chance.randrange(1, 12))]
        part = fair_part(limit, amounts)
        taken = sum(min(amount, part) for amount in amounts)
        assert taken <= limit
        assert taken == sum(amounts) or taken + len(amounts) > limit
    assert fair_part(100, []) == 100


def test_a_tenant_has_a_part_even_where_there_are_more_tenants_than_parts() -> None:
    assert fair_part(320, [1000] * 400) == 1


def test_nobody_has_more_than_a_part_even_alone() -> None:
    shares = fair_shares(10, [10, 10], TooManyAtOnce)
    with pytest.raises(TooManyAtOnce):
        shares.hold(6, "one")
    one, _ = shares.hold(5, "one"), shares.hold(5, "other")
    with pytest.raises(TooManyAtOnce):
        one.grow(1)
    one.release()
    assert shares.used == 5


@pytest.mark.parametrize("run", ["memory"], indirect=True)
@pytest.mark.parametrize("part", [1, 3])
def test_a_stream_alone_continues_however_few_rows_its_tenant_may_have(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    part: int,
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, store = catalogue.with_states("characters"), streams._store
        assert isinstance(store, MemoryStore)
        stream = (await streams.create(served, None)).id
        await streams.step(served, stream, 1, b"a", write)
        rows = store._rows.of(served.engine)
        assert rows.share < served.engine.max_cached_states, (
            "there is room for a step beyond the part"
        )
        monkeypatch.setattr(rows, "share", part)
        for number in range(2, 13):
            await streams.step(served, stream, number, b"a", write)
        record = await streams.describe(served.tenant, stream)
        assert record.checkpoints == tuple(range(13 - part, 13))
        assert rows.used == part
        await until_rows(served, part)
        await streams.delete(served.tenant, stream)

    run(test)


@pytest.mark.parametrize("run", ["memory"], indirect=True)
def test_a_tenant_exceeds_its_part_of_the_rows_by_one_step_at_a_time(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(view: StreamView) -> bytes:
        await write(view)
        raise InternalError("no reply")

    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, store = catalogue.with_states("characters"), streams._store
        assert isinstance(store, MemoryStore)

        async def step(stream: str, work: Work = write) -> bytes:
            return await streams.step(served, stream, None, b"a", work, checkpoints=1)

        async def during(view: StreamView) -> bytes:
            with pytest.raises(TooManyAtOnce):
                await step(other)
            return await write(view)

        one, other = [(await streams.create(served, None)).id for _ in range(2)]
        for stream in (one, other):
            await step(stream)
        rows = store._rows.of(served.engine)
        monkeypatch.setattr(rows, "share", 2)
        await step(one, during)
        with pytest.raises(ServeError, match="no reply"):
            await step(other, fail)
        assert rows.used == 2
        await step(other)
        (fork,) = await streams.fork(served, other)
        with pytest.raises(TooManyAtOnce):  # the fork keeps the state that the step would replace
            await step(other)
        for stream in (one, other, fork.id):
            await streams.delete(served.tenant, stream)
        assert rows.used == 0

    run(test)
