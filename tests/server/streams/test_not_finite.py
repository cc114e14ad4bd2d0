"""Numbers that overflow in the model are refused as such, and no state that holds them goes out."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from sruserve.server.app import Application
from tests.server.conftest import Serve
from tests.server.observing import until
from tests.server.ports import free_port
from tests.server.streams.conftest import KEYS, StartRedis
from tests.server.websocket.talks import ask, connected

HUGE = [[1e38, -1e38] * 4] * 3
SMALL = [[0.5] * 8]
Running = tuple[httpx.Client, Application]


@pytest.fixture(scope="module", params=["memory", "redis"])
def running(
    request: pytest.FixtureRequest,
    serve: Serve,
    start_redis: StartRedis,
    folders: Path,
    task_folders: Path,
) -> Any:
    chosen = (folders / "sensor", folders / "characters", task_folders / "motion")
    settings: dict[str, Any] = {"model_folders": (*chosen, task_folders / "encoder")}
    if request.param == "memory":
        with serve(**settings) as server:
            yield server
        return
    port = free_port()
    with (
        start_redis(port),
        serve(**settings, state_keys=KEYS, store=f"redis://127.0.0.1:{port}") as server,
    ):
        yield server


def refused(reply: httpx.Response) -> None:
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "not_finite"), reply.text


@pytest.mark.parametrize(
    ("path", "model"),
    [("/v1/classify", "sensor"), ("/v1/tag", "motion"), ("/v1/encode", "encoder")],
)
def test_what_overflows_is_no_result_and_no_state(running: Running, path: str, model: str) -> None:
    client = running[0]
    body = {"model": model, "features": HUGE}
    refused(client.post(path, json={**body, "return_state": True}))
    if model == "encoder":
        outputs = client.post(path, json=body).json()["results"][0]["outputs"]
        assert None in outputs[-1], "what is not finite is null"
    else:
        refused(client.post(path, json=body))
    assert client.post(path, json={**body, "features": SMALL, "return_state": True}).is_success


@pytest.mark.parametrize("model", ["sensor", "motion", "encoder"])
def test_a_held_stream_stays_as_it_was(running: Running, model: str) -> None:
    client, application = running
    stream = client.post("/v1/streams", json={"model": model}).json()["id"]
    path = f"/v1/streams/{stream}"
    first = client.post(f"{path}/steps", json={"step": 1, "features": SMALL})
    assert first.status_code == 200
    for _ in range(3):
        refused(client.post(f"{path}/steps", json={"step": 2, "features": HUGE}))
    assert client.get(path).json()["step"] == 1
    assert client.post(f"{path}/steps", json={"step": 2, "features": SMALL}).status_code == 200
    assert client.delete(path).status_code == 200
    catalogue = application.lifecycle.catalogue
    until(lambda: not any(catalogue.with_states(name).engine.rows for name in catalogue))


def test_a_socket_stays_as_it_was(running: Running) -> None:
    async def talk() -> None:
        async with connected(running[0]) as socket:
            one = await ask(socket, model="sensor", features=SMALL)
            for _ in range(2):
                assert (await ask(socket, features=HUGE))["error"]["code"] == "not_finite"
            two = await ask(socket, features=SMALL)
        async with connected(running[0]) as socket:
            assert await ask(socket, model="sensor", features=SMALL) == one
            assert await ask(socket, features=SMALL) == two

    asyncio.run(talk())


def test_kserve_tells_the_same(running: Running) -> None:
    data = [number for row in HUGE for number in row]
    tensor = {"name": "features", "datatype": "FP32", "shape": [3, 8], "data": data}
    reply = running[0].post("/v2/models/sensor/infer", json={"inputs": [tensor]})
    assert reply.status_code in (400, 422), reply.text
    assert "NaN or infinite" in json.dumps(reply.json())


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/score"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_text_of_a_model_whose_state_overflows_is_none(
    running: Running, path: str, value: float
) -> None:
    client, application = running
    network: Any = application.lifecycle.catalogue.with_states("characters").model.network
    table = network._compiled._projected  # the first layer's products of all ids
    before = table.clone()
    field = "prompt" if path == "/v1/completions" else "input"
    try:
        table.fill_(value)
        for more in ({}, {"return_state": True}):
            refused(client.post(path, json={"model": "characters", field: "To be", **more}))
    finally:
        table.copy_(before)
    assert client.post(path, json={"model": "characters", field: "To be"}).is_success
