"""Tenants share the processes and the memory of compiled constraints."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from sruserve.server.engine.constrained.byte_vocabulary import ByteVocabulary
from sruserve.server.engine.constrained.constraint import Constraint
from sruserve.server.errors import Overloaded
from sruserve.server.tasks.constraint_cache import (
    MAX_WAITING,
    MAX_WAITING_OF_ONE,
    ConstraintCache,
)
from tests.server.conftest import Serve
from tests.server.observing import until
from tests.server.posting import refusal
from tests.server.tasks.constraint_cache.requests import body, complete, stopped


def test_one_tenants_crowd_gets_429_and_another_tenant_a_place(
    client: httpx.Client, grammars: ConstraintCache
) -> None:
    with ThreadPoolExecutor(MAX_WAITING_OF_ONE + 1) as pool:
        with stopped(grammars, client):
            crowd = [
                pool.submit(complete, client, regex=f"b{{{n}}}c", max_tokens=0)
                for n in range(MAX_WAITING_OF_ONE)
            ]
            until(lambda: grammars.waiting == MAX_WAITING_OF_ONE)
            refusal(complete(client, regex="one more"), 429, "overloaded", None)
            other = pool.submit(complete, client, "22222222", regex="b{3}c")
            until(lambda: grammars.waiting == MAX_WAITING_OF_ONE + 1)
        assert other.result().status_code == 200
        assert {each.result().status_code for each in crowd} <= {200, 429}


def test_only_so_many_compilations_wait_and_of_one_tenant_fewer() -> None:
    async def run() -> None:
        constraints, tasks = ConstraintCache(32 << 20), list[asyncio.Task[None]]()

        async def visit(owner: str | None) -> None:
            async with constraints._turn(owner):
                await asyncio.sleep(0)

        async def crowd(owner: str | None, count: int) -> None:
            tasks.extend(asyncio.create_task(visit(owner)) for _ in range(count))
            await asyncio.sleep(0)

        async with constraints._turn("a"):
            await crowd("a", MAX_WAITING_OF_ONE - 1)
            with pytest.raises(Overloaded):
                await visit("a")
            await crowd(None, MAX_WAITING - MAX_WAITING_OF_ONE)
            with pytest.raises(Overloaded):
                await visit("b")
            tasks.pop(0).cancel()
            await asyncio.sleep(0)
            await crowd("b", 1)
            with pytest.raises(Overloaded):
                await visit("c")
        await asyncio.wait_for(asyncio.gather(*tasks), 60)
        assert constraints.waiting == 0
        constraints.close()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_tenant_pushes_its_own_grammars_out_first_and_none_that_is_in_use(
    client: httpx.Client, grammars: ConstraintCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def identity(text: str) -> bytes:
        return Constraint.regex(text, ByteVocabulary.of_values(bytes(range(256)))).identity

    def cached_keys() -> list[bytes]:
        return [each.constraint.identity for each in grammars.store.entries.values()]

    grammars.store.entries.clear()
    complete(client, "22222222", regex="theirs")
    complete(client, regex="used")
    in_use = list(grammars.store.entries.values())[-1].constraint
    complete(client, regex="own")
    monkeypatch.setattr(grammars.store, "max_processes", 4)
    assert complete(client, regex="new").status_code == 200
    assert cached_keys() == [identity("theirs"), identity("used"), identity("new")]
    assert in_use.identity == identity("used")


@pytest.mark.parametrize(("processes", "max_bytes"), [(4, 1 << 30), (64, 32 << 20)])
def test_a_tenant_whose_grammars_are_in_use_leaves_half_of_the_room_to_others(
    client: httpx.Client,
    grammars: ConstraintCache,
    monkeypatch: pytest.MonkeyPatch,
    processes: int,
    max_bytes: int,
) -> None:
    grammars.store.entries.clear()
    monkeypatch.setattr(grammars.store, "max_processes", processes)
    monkeypatch.setattr(grammars.store.memory, "max_bytes", max_bytes)
    for regex in ("one", "two"):
        assert complete(client, regex=regex).status_code == 200
    in_use = [cached.constraint for cached in grammars.store.entries.values()]
    reply = complete(client, regex="three")
    refusal(reply, 429, "overloaded", None)
    assert "this API key" in reply.text
    for regex in ("three", "four", "five"):
        assert complete(client, "22222222", regex=regex).status_code == 200
    in_use.pop()
    assert complete(client, regex="three").status_code == 200


@pytest.mark.parametrize(("processes", "max_bytes"), [(8, 1 << 30), (64, 60 << 20)])
def test_two_tenants_whose_grammars_are_in_use_leave_room_to_a_third(
    client: httpx.Client,
    grammars: ConstraintCache,
    monkeypatch: pytest.MonkeyPatch,
    processes: int,
    max_bytes: int,
) -> None:
    grammars.store.entries.clear()
    monkeypatch.setattr(grammars.store, "max_processes", processes)
    monkeypatch.setattr(grammars.store.memory, "max_bytes", max_bytes)
    for key in ("11111111", "22222222"):
        regexes = iter(range(processes))
        while complete(client, key, regex=f"a{{{next(regexes)}}}").status_code == 200:
            in_use = [cached.constraint for cached in grammars.store.entries.values()]
    assert len({constraint.process.owner for constraint in in_use}) == 2
    assert complete(client, "33333333", regex="b").status_code == 200


def test_a_tenant_whose_grammars_grow_takes_no_room_from_others(
    client: httpx.Client, grammars: ConstraintCache
) -> None:
    grammars.store.entries.clear()
    assert complete(client, regex="one").status_code == 200
    in_use = next(iter(grammars.store.entries.values())).constraint
    in_use.process.used_bytes = 20 << 20
    assert complete(client, "22222222", regex="two").status_code == 200
    assert in_use.process.runs
    in_use.process.used_bytes = 40 << 20
    assert complete(client, "22222222", regex="three").status_code == 200
    assert not in_use.process.runs


def test_clients_without_keys_have_no_share_and_no_line_of_their_own(
    serve: Serve, folder: Path
) -> None:
    settings: dict[str, Any] = {"models": folder.parent, "model_folders": ()}
    with (
        serve(**settings) as (client, application),
        ThreadPoolExecutor(MAX_WAITING_OF_ONE + 1) as pool,
    ):
        grammars = application.constraints

        def ask(number: int) -> httpx.Response:
            return client.post("/v1/completions", json=body(regex=f"b{{{number}}}c"))

        with stopped(grammars, client):
            crowd = [pool.submit(ask, n) for n in range(MAX_WAITING_OF_ONE + 1)]
            until(lambda: grammars.waiting == MAX_WAITING_OF_ONE + 1)
        assert {each.result().status_code for each in crowd} == {200}
