"""Forecasts under way, whose every step is a job of its own."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton

from sruserve.model.heads.config import HeadConfig
from sruserve.model.heads.regression import Regression
from sruserve.server.app import Application
from sruserve.server.engine.engine import Engine
from tests.server.conftest import Serve
from tests.server.hand_clock import HandClock
from tests.server.http.json_requests import connect
from tests.server.keys import ACME, bearer
from tests.server.kserve.conftest import grpc_address
from tests.server.observing import until
from tests.server.posting import refusal
from tests.support import save_random_model

PATH = "/v1/regress"
STEPS = {"features": [[1.0, 2.0]] * 10}
LONG = 100_000  # steps ahead, which take seconds


@pytest.fixture(scope="module")
def forecaster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    regression = Regression(names=("demand", "price"), forecasts=True)
    folder = tmp_path_factory.mktemp("forecaster") / "forecaster"
    bounded = HeadConfig.model_validate(
        {"output_layers": [{"type": "activation", "function": "tanh"}]}
    )
    return save_random_model(folder, "regress", regression=regression, head=bounded, input_size=2)


@pytest.fixture(scope="module")
def running(serve: Serve, forecaster: Path) -> Iterator[tuple[httpx.Client, Application]]:
    with serve(models=None, model_folders=(forecaster,), grpc_port=0) as running:
        yield running


@contextmanager
def limited(
    serve: Serve, forecaster: Path, folder: Path, rate: float, clock: HandClock
) -> Iterator[tuple[httpx.Client, Application]]:
    """A server, and a client whose key has a rate of steps."""
    keys = folder / "keys.json"
    keys.write_text(json.dumps([{"key": ACME, "tenant": "acme", "steps_per_second": rate}]))
    options: dict[str, Any] = {
        "models": None,
        "model_folders": (forecaster,),
        "max_new_tokens": LONG,
    }
    with serve(clock=clock, api_keys_file=keys, **options) as (client, server):
        client.headers.update(bearer(ACME))
        yield client, server


def forecast(client: httpx.Client, steps_ahead: int) -> httpx.Response:
    return client.post(PATH, json=STEPS | {"steps_ahead": steps_ahead})


def until_it_has_stepped(engine: Engine, steps: int) -> None:
    turns = engine.turns
    until(lambda: engine.turns > turns + steps)


def engine_of(server: Application) -> Engine:
    return server.lifecycle.catalogue.with_states("forecaster").engine


def test_steps_ahead_count_as_steps_of_a_tenants_rate(
    serve: Serve, forecaster: Path, tmp_path: Path
) -> None:
    with limited(serve, forecaster, tmp_path, 0.5, HandClock()) as (client, _):
        (result,) = forecast(client, 40).json()["results"]
        assert len(result["ahead"]) == 40  # more steps than the rate, in the one accepted request
        reply = client.post(PATH, json=STEPS)
        refusal(reply, 429, "rate_limited")
        assert int(reply.headers["retry-after"]) > (10 + 38) / 0.5


def test_forecasts_that_run_together_do_not_pass_the_same_check(
    serve: Serve, forecaster: Path, tmp_path: Path
) -> None:
    limits = serve, forecaster, tmp_path, 100, HandClock()
    with limited(*limits) as (client, _), ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda _: forecast(client, 2000), range(8)))
        assert sorted(reply.status_code for reply in replies) == [200] + [429] * 7


def test_a_forecast_whose_client_leaves_returns_the_steps_that_it_did_not_compute(
    serve: Serve, forecaster: Path, tmp_path: Path
) -> None:
    clock = HandClock()
    with limited(serve, forecaster, tmp_path, 500, clock) as (client, server):
        with connect(client, PATH, STEPS | {"steps_ahead": LONG}, **bearer(ACME)):
            until(lambda: engine_of(server).turns > 20)
        clock.now += LONG / 2 / 500
        until(lambda: client.post(PATH, json=STEPS).is_success)


@pytest.mark.parametrize("number", [None, 1], ids=["without numbers", "with numbers"])
@pytest.mark.parametrize("protocol", [triton, triton_grpc], ids=["HTTP", "gRPC"])
def test_every_request_of_a_sequence_may_forecast(
    running: tuple[httpx.Client, Application], protocol: Any, number: int | None
) -> None:
    client, server = running
    expected = forecast(client, 3).json()["results"][0]
    tensor = protocol.InferInput("features", [5, 2], "FP32")
    tensor.set_data_from_numpy(np.array(STEPS["features"][:5], np.float32))
    address = f"127.0.0.1:{client.base_url.port}" if protocol is triton else grpc_address(server)
    with protocol.InferenceServerClient(address) as connection:
        for end in (False, True):
            parameters = {"steps_ahead": 3} | ({} if number is None else {"sru_step": 1 + end})
            reply = connection.infer(
                "forecaster", [tensor], sequence_id=7, sequence_start=not end, sequence_end=end,
                parameters=parameters,
            )  # fmt: skip
    ahead = reply.as_numpy("ahead").tolist()
    assert ahead == [list(values.values()) for values in expected["ahead"]]


def test_a_forecast_that_runs_is_not_refused_by_a_full_queue(
    serve: Serve, forecaster: Path
) -> None:
    options: dict[str, Any] = {"models": None, "model_folders": (forecaster,)}
    with (
        serve(max_queue_requests=1, **options) as (client, server),
        ThreadPoolExecutor() as pool,
    ):
        replies = [pool.submit(forecast, client, 5000)]
        for _ in range(3):
            until_it_has_stepped(engine_of(server), 20)
            replies.append(pool.submit(forecast, client, 3000))
        assert [reply.result().status_code for reply in replies] == [200] * 4
