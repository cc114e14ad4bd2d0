"""Whose the states of translations are, and how long they live."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.conftest import Serve
from tests.server.hand_clock import HandClock
from tests.server.keys import ACME, OTHER, bearer
from tests.server.observing import until
from tests.server.repository.changing_models import change
from tests.server.translation.conftest import Running
from tests.server.translation.models import save_random_system

TTL = 1000
NAME = "gru-one-way"
BEGIN: dict[str, Any] = {"model": NAME, "input": "a4 a5 a6 a", "wait_k": 2, "more": True}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_version(tmp_path, 1)
    return tmp_path


def save_version(folder: Path, version: int) -> None:
    save_random_system(folder / NAME / str(version), NAME, seed=version)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def deploying(serve: Serve, folder: Path, clock: HandClock) -> Iterator[Running]:
    settings: dict[str, Any] = {"models": folder, "model_folders": (), "model_control": True}
    settings |= {"clock": clock, "state_ttl_seconds": TTL, "stream_idle_seconds": 100}
    with serve(**settings) as running:
        yield running


def begin(client: httpx.Client) -> str:
    reply = client.post("/v1/translate", json=BEGIN)
    return str(reply.json()["results"][0]["state"])


def ids(client: httpx.Client) -> list[str]:
    return [model["id"] for model in client.get("/v1/models").json()["data"]]


def go_on(client: httpx.Client, state: str, **headers: str) -> httpx.Response:
    body = {"model": NAME, "input": "7 a8", "state": state}
    return client.post("/v1/translate", json=body, headers=headers)


def test_a_state_continues_with_its_version_until_it_expires(
    deploying: Running, folder: Path, clock: HandClock
) -> None:
    client, application = deploying
    clock.now += 500  # no state before this counts
    state = begin(client)
    expected = go_on(client, state).json()["results"]
    save_version(folder, 2)
    assert change(client, NAME, "load").status_code == 200
    clock.now += TTL - 1
    repository = application.lifecycle.repository
    (old,) = [each for each in repository.catalogue.every() if each.version == "1"]
    assert not repository._local.is_over(old)
    assert go_on(client, state).json()["results"] == expected
    clock.now += 1
    until(lambda: ids(client) == [NAME])
    assert go_on(client, state).json()["error"]["code"] == "state_wrong_model"


def test_a_state_stays_valid_when_its_model_is_loaded_again(deploying: Running) -> None:
    client, _ = deploying
    state = begin(client)
    expected = go_on(client, state).json()["results"]
    assert change(client, NAME, "load").status_code == 200
    assert go_on(client, state).json()["results"] == expected


def test_a_state_belongs_to_the_tenant_that_got_it(serve: Serve, folder: Path) -> None:
    keys = json.dumps([{"tenant": name, "key": name} for name in (ACME, OTHER)])
    with serve(models=folder, model_folders=(), api_keys=keys) as (client, _):
        reply = client.post("/v1/translate", json=BEGIN, headers=bearer(ACME))
        state = reply.json()["results"][0]["state"]
        assert go_on(client, state, **bearer(ACME)).status_code == 200
        stolen = go_on(client, state, **bearer(OTHER))
        assert (stolen.status_code, stolen.json()["error"]["code"]) == (403, "state_wrong_tenant")
