"""Regression over HTTP: values, quantiles, every step, steps ahead, and streams in any chunks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import tritonclient.http as triton
import websockets.sync.client as websockets
from torch import Tensor

from sruserve.kernels import single
from sruserve.model.folder import Model, load_model
from sruserve.model.heads.config import HeadConfig
from sruserve.model.heads.regression import Regression
from sruserve.server.http.responses.regress import RegressReply
from tests.server.conftest import Serve
from tests.server.posting import refusal
from tests.support import save_random_model

ROWS = [[0.3 * ((i * 7 + j) % 5) - 0.5 for j in range(2)] for i in range(60)]
NAMES = ("demand", "price")
SCALE: dict[str, Any] = {"output_layers": [{"type": "scale"}]}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "last": ({"names": NAMES, "units": ("MW", "€/MWh"), "forecasts": True}, SCALE),
    "mean": ({"names": NAMES}, {"pooling": "mean"}),
    "several": ({"names": NAMES}, {"pooling": ["last", "max", "mean"]}),
    "ends": ({"names": NAMES}, {"pooling": ["mean", "final"], "final": ["0.c", "1.c"]}),
    "every": ({"names": NAMES, "steps": "every", "forecasts": True}, {}),
    "quantiles": ({"names": NAMES, "quantiles": (0.1, 0.5, 0.9), "forecasts": True}, {}),
}


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    parent = tmp_path_factory.mktemp("regressors")
    for name, (regression, head) in KINDS.items():
        options: dict[str, Any] = {
            "regression": Regression.model_validate(regression),
            "head": HeadConfig.model_validate(head),
            "input_size": 2,
        }
        save_random_model(parent / name, "regress", **options)
    both: dict[str, Any] = {"regression": Regression(names=("x",)), "vocab_size": 30}
    save_random_model(parent / "both-ways", "regress", bidirectional=True, **both)
    return parent


@pytest.fixture(scope="module")
def server(serve: Serve, parent: Path) -> Iterator[httpx.Client]:
    with serve(models=parent, model_folders=()) as (client, _):
        yield client


def regress(client: httpx.Client, model: str, **body: Any) -> list[dict[str, Any]]:
    reply = client.post("/v1/regress", json={"model": model, **body})
    assert reply.status_code == 200, reply.text
    RegressReply.model_validate_json(reply.content, strict=True)
    assert reply.json()["id"].startswith("reg-")
    results: list[dict[str, Any]] = reply.json()["results"]
    return results


def numbers(values: Any) -> list[float]:
    """The numbers of a result's values, in order."""
    if isinstance(values, dict):
        return [number for value in values.values() for number in numbers(value)]
    return [values]


def outputs(model: Model, rows: list[list[float]]) -> Tensor:
    """The network's outputs of every step."""
    states = model.network.layout.allocate(1)
    return model.network.logits(model.network.hidden(torch.tensor(rows), single(states, len(rows))))


@pytest.mark.parametrize("name", KINDS)
def test_values_are_those_of_the_network(server: httpx.Client, parent: Path, name: str) -> None:
    expected = outputs(load_model(parent / name), ROWS)
    (result,) = regress(server, name, features=ROWS)
    assert tuple(result["values"]) == NAMES
    assert numbers(result["values"]) == expected[-1].tolist()
    if name == "every":
        assert [numbers(step) for step in result["steps"]] == expected.tolist()
    else:
        assert result["steps"] is None
    assert (result["ahead"], result["state"]) == (None, None)


def test_quantiles_have_names(server: httpx.Client) -> None:
    (result,) = regress(server, "quantiles", features=ROWS)
    assert [list(value) for value in result["values"].values()] == [["0.1", "0.5", "0.9"]] * 2


@pytest.mark.parametrize("cuts", [[1], [29, 30, 31], list(range(0, 60, 7))], ids=str)
@pytest.mark.parametrize("name", KINDS)
def test_chunks_give_the_values_of_the_whole(
    server: httpx.Client, name: str, cuts: list[int]
) -> None:
    (whole,) = regress(server, name, features=ROWS, return_state=True)
    steps: list[Any] = []
    state, begin = None, 0
    for end in [*cuts, 60]:
        if end == begin == 0:
            continue  # a stream begins with a step
        (part,) = regress(server, name, features=ROWS[begin:end], state=state, more=True)
        steps += part["steps"] or []
        state, begin = part["state"], end
    assert part["values"] == whole["values"]
    assert steps == (whole["steps"] or [])
    (again,) = regress(server, name, features=[], state=state)
    assert again["values"] == whole["values"]
    assert again["steps"] == ([] if name == "every" else None)


def test_sequences_of_different_lengths_give_what_each_gives_alone(server: httpx.Client) -> None:
    batch = [ROWS, ROWS[:1], ROWS[5:40]]
    alone = [regress(server, "last", features=rows)[0] for rows in batch]
    assert regress(server, "last", features=batch) == alone
    reply = server.post("/v1/regress", json={"model": "last", "features": [ROWS, []]})
    assert "no steps" in refusal(reply, 422, "empty_input", "features")


def fed_back(model: Model, rows: list[list[float]], steps: int) -> list[list[float]]:
    """The outputs of the steps ahead, with the whole history computed anew for each."""
    regression = model.config.regression
    assert regression is not None
    rows, ahead = list(rows), []
    for _ in range(steps):
        last = outputs(model, rows)[-1]
        rows.append(last[regression.fed_back].tolist())
        ahead.append(outputs(model, rows)[-1].tolist())
    return ahead


@pytest.mark.parametrize("name", ["last", "every", "quantiles"])
def test_steps_ahead_read_the_predictions_before_them(
    server: httpx.Client, parent: Path, name: str
) -> None:
    expected = fed_back(load_model(parent / name), ROWS, 5)
    (result,) = regress(server, name, features=ROWS, steps_ahead=5)
    assert [numbers(step) for step in result["ahead"]] == expected
    assert result["state"] is None
    (plain,) = regress(server, name, features=ROWS)
    assert result["values"] == plain["values"]
    body = {"model": name, "features": ROWS, "steps_ahead": 5}
    assert server.post("/v1/regress", json=body).json()["usage"] == {"steps": 65}


def test_the_state_of_a_forecast_is_that_before_it(server: httpx.Client) -> None:
    (forecast,) = regress(server, "last", features=ROWS[:30], steps_ahead=3, return_state=True)
    (rest,) = regress(server, "last", features=ROWS[30:], state=forecast["state"])
    assert rest["values"] == regress(server, "last", features=ROWS)[0]["values"]
    (later,) = regress(server, "last", features=[], state=forecast["state"], steps_ahead=3)
    assert later["ahead"] == forecast["ahead"]


def test_forecasts_of_a_batch_are_those_of_each(server: httpx.Client) -> None:
    batch = [ROWS, ROWS[:3]]
    together = regress(server, "last", features=batch, steps_ahead=4)
    assert together == [regress(server, "last", features=r, steps_ahead=4)[0] for r in batch]


def test_a_held_stream_forecasts_and_continues(server: httpx.Client) -> None:
    stream = server.post("/v1/streams", json={"model": "last"}).json()["id"]
    path = f"/v1/streams/{stream}/steps"
    first = server.post(path, json={"step": 1, "features": ROWS[:20], "steps_ahead": 2}).json()
    expected = regress(server, "last", features=ROWS[:20], steps_ahead=2)[0]
    assert first["results"][0]["ahead"] == expected["ahead"]
    second = server.post(path, json={"step": 2, "features": ROWS[20:]}).json()
    assert second["results"][0]["values"] == regress(server, "last", features=ROWS)[0]["values"]


def test_a_web_socket_gets_values(server: httpx.Client) -> None:
    with websockets.connect(
        f"ws://{server.base_url.netloc.decode()}/v1/stream", open_timeout=60, ping_interval=None
    ) as socket:
        socket.send(json.dumps({"model": "last", "features": ROWS[:20]}))
        socket.recv()
        socket.send(json.dumps({"features": ROWS[20:], "steps_ahead": 2}))
        reply = json.loads(socket.recv())
    expected = regress(server, "last", features=ROWS, steps_ahead=2)[0]
    assert (reply["values"], reply["ahead"]) == (expected["values"], expected["ahead"])


@pytest.mark.parametrize("name", KINDS)
def test_kserve_gives_the_same_numbers(server: httpx.Client, name: str) -> None:
    steps_ahead = {"steps_ahead": 2} if "forecasts" in KINDS[name][0] else {}
    tensor = triton.InferInput("features", [60, 2], "FP32")
    tensor.set_data_from_numpy(np.array(ROWS, np.float32))
    with triton.InferenceServerClient(server.base_url.netloc.decode()) as client:
        reply = client.infer(name, [tensor], parameters=steps_ahead)
    (expected,) = regress(server, name, features=ROWS, **steps_ahead)
    rows = expected["steps"] if name == "every" else [expected["values"]]
    assert reply.as_numpy("values").reshape(len(rows), -1).tolist() == [numbers(r) for r in rows]
    if steps_ahead:
        assert reply.as_numpy("ahead").tolist() == [numbers(row) for row in expected["ahead"]]


def test_kserve_gives_an_empty_chunk_of_every_step_its_shape(server: httpx.Client) -> None:
    (first,) = regress(server, "every", features=ROWS, return_state=True)
    nothing = triton.InferInput("features", [0, 2], "FP32")
    nothing.set_data_from_numpy(np.zeros((0, 2), np.float32))
    with triton.InferenceServerClient(server.base_url.netloc.decode()) as client:
        reply = client.infer("every", [nothing], parameters={"sru_state": first["state"]})
    assert reply.as_numpy("values").shape == (0, 2)


def test_models_name_their_values(server: httpx.Client) -> None:
    last = server.get("/v1/models/last").json()
    assert last["outputs"] == [
        {"name": "demand", "unit": "MW", "quantiles": []},
        {"name": "price", "unit": "€/MWh", "quantiles": []},
    ]
    quantiles = server.get("/v1/models/quantiles").json()["outputs"]
    assert [value["quantiles"] for value in quantiles] == [[0.1, 0.5, 0.9]] * 2


def test_long_names_count_in_a_reply(serve: Serve, tmp_path: Path) -> None:
    for model, name in (("short", "é" * 31), ("long", "é" * 128)):
        options: dict[str, Any] = {"regression": Regression(names=(name,), steps="every")}
        save_random_model(tmp_path / model, "regress", input_size=1, **options)
    with serve(models=tmp_path, model_folders=(), max_body_bytes=8 * 600) as (client, _):
        for model, steps in (("short", 300), ("long", 100)):  # of 2 and 6 numbers for each value
            assert len(regress(client, model, features=[[0.5]] * steps)[0]["steps"]) == steps
            body = {"model": model, "features": [[0.5]] * (steps + 1)}
            refusal(client.post("/v1/regress", json=body), 422, "input_too_long")


STEP = [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("model", "body", "says"),
    [
        ("mean", {"features": STEP, "steps_ahead": 1}, "leave out 'steps_ahead'"),
        ("last", {"features": STEP, "steps_ahead": -1}, "from 0 to"),
        ("last", {"features": STEP, "steps_ahead": 2**31}, "MAX_NEW_TOKENS"),
        ("last", {"features": [[1.0]]}, "every step of 'features' must have 2"),
        ("last", {"features": [[[1.0]]]}, "every step of 'features' must have 2"),
    ],
    ids=str,
)
def test_what_cannot_be_answered_is_refused(
    server: httpx.Client, model: str, body: dict[str, Any], says: str
) -> None:
    reply = server.post("/v1/regress", json={"model": model, **body})
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "invalid_request")
    assert says in reply.json()["error"]["message"]


def test_a_regressor_of_both_directions_reads_whole_inputs(server: httpx.Client) -> None:
    body = {"model": "both-ways", "input": [1, 2]}
    assert server.post("/v1/regress", json=body).is_success
    reply = server.post("/v1/regress", json={**body, "return_state": True})
    assert "bidirectional" in refusal(reply, 422, "cannot_stream", "return_state")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"names": ()}, "at least 1"),
        ({"names": ("a", "a")}, "two outputs have the same name"),
        ({"names": ("a",), "units": ("m", "s")}, "2 units for 1 names"),
        ({"names": ("a",), "quantiles": (0.5, 0.1)}, "quantiles must rise"),
        ({"names": ("a",), "quantiles": (0.1,), "forecasts": True}, "must contain 0.5"),
        ({"names": ("a" * 300,)}, "300 bytes; the limit is 256"),
    ],
    ids=str,
)
def test_outputs_that_do_not_fit_together_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Regression.model_validate(options)
