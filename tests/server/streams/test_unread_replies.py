"""Stored replies that clients do not read count as others do, until they are sent or unwanted."""

import json
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from sruserve.server.app import Application
from sruserve.server.engine.snapshot import Snapshot
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.streams.record import StreamRecord
from tests.server.conftest import Serve
from tests.server.http.json_requests import connect
from tests.server.keys import bearer
from tests.server.observing import until
from tests.server.streams.conftest import ACME, KEYS, OTHER
from tests.server.streams.tenants import TWO

MAX_QUEUE_BYTES = 48 << 20
LONG = b"a" * (MAX_QUEUE_BYTES // 5)  # two of them fit into half of the bound
STEP: dict[str, Any] = {"step": 1, "prompt": "a", "max_tokens": 1}
NUMBERS = len(LONG) // 8
BODY = json.dumps(STEP)  # as `connect` sends it


@pytest.fixture
def stored(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[httpx.Client, Application, dict[str, str]]]:
    """A server whose streams have long replies and states; a stream of each tenant, by its key."""

    async def reply(record: StreamRecord) -> bytes:
        del record
        return LONG

    async def token(
        served: ServedModel, stream_id: str, count: Callable[[Snapshot], object]
    ) -> tuple[int, str]:
        del served, stream_id
        count(Snapshot(row=np.zeros(0, np.float32), word="a" * (4 * NUMBERS)))
        return 1, LONG.decode()

    bounds = {"max_queue_bytes": MAX_QUEUE_BYTES, "max_body_bytes": MAX_QUEUE_BYTES // 2}
    with serve("characters", api_keys=TWO, state_keys=KEYS, **bounds) as (client, application):
        ids = {}
        for key in (ACME, OTHER):
            made = client.post("/v1/streams", json={}, headers=bearer(key))
            ids[key] = made.json()["id"]
            steps = f"/v1/streams/{ids[key]}/steps"
            assert (
                client.post(steps, content=json.dumps(STEP), headers=bearer(key)).status_code == 200
            )
        monkeypatch.setattr(application.streams._store, "reply", reply)
        monkeypatch.setattr(application.streams, "token", token)
        yield client, application, ids


def unread(client: httpx.Client, ids: dict[str, str], key: str) -> socket.socket:
    """A connection on which a step is asked again."""
    return connect(client, f"/v1/streams/{ids[key]}/steps", STEP, **bearer(key))


def status(connection: socket.socket) -> int:
    return int(connection.recv(12).split()[1])


def test_replies_of_repeated_steps_that_are_not_read_are_bounded_for_each_tenant(
    stored: tuple[httpx.Client, Application, dict[str, str]],
) -> None:
    client, application, ids = stored
    connections = [unread(client, ids, ACME) for _ in range(2)]
    assert [status(each) for each in connections] == [200, 200]
    assert application.limits.replies.used == 2 * (len(LONG) // 8)
    refused = unread(client, ids, ACME)
    assert status(refused) == 429
    other = unread(client, ids, OTHER)
    assert status(other) == 200
    for each in (*connections, refused, other):
        each.close()
    until(lambda: application.limits.replies.used == 0)
    again = client.post(f"/v1/streams/{ids[ACME]}/steps", content=BODY, headers=bearer(ACME))
    assert again.content == LONG
    until(lambda: application.limits.replies.used == 0)


def test_states_that_are_not_read_count_too(
    stored: tuple[httpx.Client, Application, dict[str, str]],
) -> None:
    client, application, ids = stored
    path, replies = f"/v1/streams/{ids[ACME]}/state", application.limits.replies
    with client.stream("GET", path, headers=bearer(ACME)) as one:
        assert one.status_code == 200
        with client.stream("GET", path, headers=bearer(ACME)) as two:
            assert two.status_code == 200
            until(lambda: replies.used >= 2 * NUMBERS)
            assert client.get(path, headers=bearer(ACME)).status_code == 429
    until(lambda: replies.used == 0)
