"""Work of several jobs, one after another, is finished while the server drains."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from websockets.exceptions import ConnectionClosed

from sruserve.model.heads.regression import Regression
from sruserve.server.app import Application
from sruserve.server.engine.job_engine import JobEngine
from sruserve.server.tasks.complete import CompleteTask
from sruserve.server.tasks.regress import RegressTask
from tests.server.conftest import CHARACTERS, Serve
from tests.server.kserve.conftest import grpc_address
from tests.server.observing import until
from tests.server.posting import COMPLETE, refusal
from tests.server.websocket.sockets import SECONDS, open_socket
from tests.support import save_random_model

STEPS = {"features": [[1.0, 2.0]] * 10}
AHEAD = 5
Running = tuple[httpx.Client, Application]


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("models")
    regression = Regression(names=("demand", "price"), forecasts=True)
    save_random_model(parent / "load", "regress", regression=regression, input_size=2)
    save_random_model(parent / "text", vocabulary=CHARACTERS)
    return parent


@pytest.fixture
def running(serve: Serve, parent: Path) -> Iterator[Running]:
    with serve(models=parent, model_folders=(), grpc_port=0) as running:
        yield running


def drain_between_jobs(
    monkeypatch: pytest.MonkeyPatch, task: type, work: str, seconds: float
) -> None:
    """Let an engine drain when a task has begun a part of its work, and has no job."""
    method = getattr(task, work)

    async def drain_first(self: Any, caller: Any, request: Any, served: Any, *args: Any) -> Any:
        drain(served.engine, seconds)
        return await method(self, caller, request, served, *args)

    monkeypatch.setattr(task, work, drain_first)


def drain(engine: JobEngine, seconds: float) -> None:
    """Drain, and let the engine find that it has no job."""
    turns = engine.turns
    engine.drain(seconds)
    until(lambda: engine.turns > turns + 2 or engine.ended)


def over_http(client: httpx.Client, _: Application) -> int:
    reply = client.post("/v1/regress", json=STEPS | {"steps_ahead": AHEAD})
    return len(reply.json()["results"][0]["ahead"])


def over_a_held_stream(client: httpx.Client, _: Application) -> int:
    stream = client.post("/v1/streams", json={"model": "load"}).json()["id"]
    body = STEPS | {"step": 1, "steps_ahead": AHEAD}
    reply = client.post(f"/v1/streams/{stream}/steps", json=body)
    return len(reply.json()["results"][0]["ahead"])


def over_a_web_socket(client: httpx.Client, _: Application) -> int:
    with open_socket(client) as socket:
        socket.send(json.dumps(STEPS | {"model": "load", "steps_ahead": AHEAD}))
        return len(json.loads(socket.recv(SECONDS))["ahead"])


def over_grpc(_: httpx.Client, server: Application) -> int:
    tensor = triton_grpc.InferInput("features", [10, 2], "FP32")
    tensor.set_data_from_numpy(np.array(STEPS["features"], np.float32))
    with triton_grpc.InferenceServerClient(grpc_address(server)) as connection:
        reply = connection.infer("load", [tensor], parameters={"steps_ahead": AHEAD})
    return len(reply.as_numpy("ahead"))


PROTOCOLS = [over_http, over_a_held_stream, over_a_web_socket, over_grpc]


@pytest.mark.parametrize("steps_ahead", PROTOCOLS, ids=lambda protocol: protocol.__name__)
def test_a_forecast_is_finished_while_its_engine_drains(
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    steps_ahead: Callable[[httpx.Client, Application], int],
) -> None:
    client, server = running
    drain_between_jobs(monkeypatch, RegressTask, "run_ahead", 60)
    assert steps_ahead(client, server) == AHEAD
    engine = server.lifecycle.catalogue["load"].engine
    until(lambda: engine.ended)
    refusal(client.post("/v1/regress", json=STEPS | {"steps_ahead": AHEAD}), 503, "draining")


def test_a_frame_that_a_stopping_engine_refuses_is_answered_by_the_state_alone(
    running: Running,
) -> None:
    client, server = running
    with open_socket(client) as socket:
        socket.send(json.dumps({"model": "text", "prompt": "How far", "max_tokens": 1}))
        assert json.loads(socket.recv(SECONDS))["usage"]
        drain(server.lifecycle.catalogue["text"].engine, 60)
        socket.send(json.dumps({"max_tokens": 5}))
        with suppress(ConnectionClosed):  # it may be closed already
            socket.send(json.dumps({"max_tokens": 6}))
        last = json.loads(socket.recv(SECONDS))
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(SECONDS)
    assert last["error"]["code"] == "draining"
    assert last["state"]
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012


def test_a_forecast_ends_with_the_time_of_the_drain(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = running
    drain_between_jobs(monkeypatch, RegressTask, "run_ahead", 0)
    refusal(client.post("/v1/regress", json=STEPS | {"steps_ahead": AHEAD}), 503, "draining")
    assert server.lifecycle.catalogue["load"].engine.ended


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "events"])
def test_a_completion_whose_prompt_was_scored_is_finished_while_its_engine_drains(
    running: Running, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    client, server = running
    score = CompleteTask._scored

    async def score_and_drain(self: Any, caller: Any, request: Any, served: Any, *args: Any) -> Any:
        prompts = await score(self, caller, request, served, *args)
        drain(served.engine, 60)
        return prompts

    monkeypatch.setattr(CompleteTask, "_scored", score_and_drain)
    body = {"prompt": "How far", "echo": True, "logprobs": 1, "max_tokens": 5, "stream": stream}
    reply = client.post(COMPLETE, json=body)
    assert reply.status_code == 200, reply.text
    assert "error" not in reply.text
    until(lambda: server.lifecycle.catalogue["text"].engine.ended)
