"""Streams that can never go on: they expire, they can be deleted, their names can be used again."""

from pathlib import Path
from typing import Any

import pytest
import redis

from sruserve.model.folder import load_model
from sruserve.server.errors import InvalidRequest, StateRefused
from sruserve.server.kserve.parameters import Sequence
from sruserve.server.kserve.sequences import _Step
from sruserve.server.repository.catalogue import Catalogue
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.streams.memory.store import MemoryStore
from sruserve.server.streams.record import StreamRecord
from sruserve.server.streams.service import Streams
from sruserve.server.tasks.completion_request import CompletionRequest
from tests.server.conftest import Serve
from tests.server.observing import until
from tests.server.streams.conftest import KEYS, key_of
from tests.server.streams.redis.test_forks import DB
from tests.server.streams.replies import code
from tests.server.streams.work import Run, write
from tests.support import save_random_model

ID = "kserve:characters:7"


def _step(
    streams: Streams, served: ServedModel, number: int | None = None, *, start: bool
) -> _Step:
    place = Sequence("7", start=start, end=False, step=number)
    return _Step(streams, served, b"a", place, write)


async def _start(streams: Streams, served: ServedModel, number: int | None = None) -> bytes:
    step = _step(streams, served, number, start=True)
    return await step.start(CompletionRequest(model="characters", prompt="a"))


async def _go_on(streams: Streams, served: ServedModel) -> bytes:
    return await _step(streams, served, start=False).continue_stream()


@pytest.mark.parametrize("lost", ["state", "record"])
@pytest.mark.parametrize("number", [None, 1])
def test_a_sequence_whose_state_is_lost_starts_again(
    run: Run,
    request: pytest.FixtureRequest,
    lost: str,
    number: int | None,
) -> None:
    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served = catalogue.with_states("characters")
        first = await _start(streams, served, number)
        await _go_on(streams, served)
        with pytest.raises(InvalidRequest, match="step" if number else "already started"):
            await _start(streams, served, number)
        if isinstance(streams._store, MemoryStore):
            streams.end(served.engine)
        else:
            with redis.Redis(port=request.getfixturevalue("redis_port"), db=DB) as client:
                field = "state2" if lost == "state" else "head"
                client.hset(key_of(ID), field, b"what nobody can read")
        with pytest.raises(StateRefused):
            await _go_on(streams, served)
        assert await _start(streams, served, number) == first
        await _go_on(streams, served)
        assert (await streams.describe(served.tenant, ID)).checkpoints == (2,)
        await streams.delete(served.tenant, ID)

    run(test)


def test_only_what_succeeds_puts_the_expiry_of_a_stream_off(
    run: Run,
    request: pytest.FixtureRequest,
) -> None:
    async def fail(_: object) -> bytes:
        raise InvalidRequest("not this")

    async def test(streams: Streams, catalogue: Catalogue) -> None:
        served, store = catalogue.with_states("characters"), streams._store
        record = await streams.create(served, None)
        await streams.step(served, record.id, 1, b"a", write)
        left = _left_in(store, record, request)
        for refused in (
            streams.step(served, record.id, 2, b"a", fail),
            streams.step(served, record.id, 1, b"b", write),
            streams.rewind(served, record.id, 7),
        ):
            with pytest.raises(InvalidRequest):
                await refused
        assert (await streams.token(served, record.id))[0] == 1
        assert 50 < left() <= 60
        await streams.step(served, record.id, 1, b"a", write)
        assert left() > 1000
        await streams.delete(served.tenant, record.id)

    run(test)


def _left_in(store: object, record: StreamRecord, request: pytest.FixtureRequest) -> Any:
    """Let a stream live for one more minute; returns what tells how many seconds it has."""
    if isinstance(store, MemoryStore):
        key = (record.tenant.id, record.id)
        store._expiry.put(key, store._clock() + 60)
        return lambda: store._expiry.remaining_seconds(key, store._clock())
    client = redis.Redis(port=request.getfixturevalue("redis_port"), db=DB)
    client.pexpire(key_of(record.id), 60_000)
    return lambda: client.pttl(key_of(record.id)) / 1000


def test_streams_of_a_model_that_is_gone_can_be_deleted(serve: Serve) -> None:
    settings: dict[str, Any] = {"model_control": True, "tenant_stream_bytes": 4500}
    with serve("characters", "question", **settings) as (client, _):
        ids = []
        while (made := client.post("/v1/streams", json={"model": "characters"})).is_success:
            ids.append(made.json()["id"])
        assert (made.status_code, len(ids) > 0) == (429, True)
        unload = "/v2/repository/models/characters/unload"
        assert client.post(unload, json={}).status_code == 200
        assert [client.delete(f"/v1/streams/{each}").status_code for each in ids] == [200] * len(
            ids
        )
        assert client.delete(f"/v1/streams/{ids[0]}").status_code == 404
        assert client.post("/v1/streams", json={"model": "question"}).status_code == 201


def test_the_lost_states_of_streams_leave_their_quota_to_others(
    serve: Serve, tmp_path: Path
) -> None:
    folder = save_random_model(tmp_path / "wide", vocabulary=[97, 98], hidden_size=1024)
    row_bytes = load_model(folder).network.layout.nbytes
    settings: dict[str, Any] = {"model_control": True, "tenant_stream_bytes": 8 * row_bytes}
    step = {"step": 1, "prompt": "a", "max_tokens": 1}
    with serve(models=tmp_path, model_folders=(), **settings) as (client, _):

        def take_step() -> bool:
            """Create a stream and take its first step; whether the quota has room for its state."""
            made = client.post("/v1/streams", json={}).json()
            reply = client.post(f"/v1/streams/{made['id']}/steps", json=step)
            if reply.is_error:
                assert client.delete(f"/v1/streams/{made['id']}").status_code == 200
            return reply.is_success

        held = 0
        while take_step():
            held += 1
        assert held > 3
        for change in ("unload", "load"):
            assert client.post(f"/v2/repository/models/wide/{change}").status_code == 200
        for _ in range(held - 2):  # what is left of the lost streams takes less than two states
            until(take_step)


def test_a_stream_under_a_key_that_is_gone_can_be_deleted(serve: Serve, redis_port: int) -> None:
    settings: dict[str, Any] = {"store": f"redis://127.0.0.1:{redis_port}/9"}
    with (
        serve("characters", state_keys=KEYS, **settings) as (client, _),
        serve("characters", state_keys="b" * 64, **settings) as (other, _),
    ):
        stream = client.post("/v1/streams", json={}).json()["id"]
        assert code(other.get(f"/v1/streams/{stream}")) == "state_unknown_key"
        assert other.delete(f"/v1/streams/{stream}").status_code == 200
        assert client.get(f"/v1/streams/{stream}").status_code == 404
