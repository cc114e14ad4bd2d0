"""Versions of a model side by side: their ids, whose states go where, and when one ends."""

import gc
import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException
from websockets.sync.client import connect as open_websocket

from sruserve.server.app import Application
from sruserve.server.repository.device import NoMemory
from sruserve.server.repository.discovery import find_models, loadable_models
from sruserve.server.repository.loader import Loader
from sruserve.server.repository.served import Served
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.settings import SettingsError, load_settings
from tests.server.conftest import LABELS, Serve
from tests.server.hand_clock import HandClock
from tests.server.kserve.conftest import grpc_address
from tests.server.kserve.support import connected as kserve_connected
from tests.server.kserve.support import texts as text_tensor
from tests.server.observing import metric, until
from tests.server.repository.changing_models import (
    WORDS,
    change,
    classify,
    save_version,
    version_of,
)
from tests.server.websocket.talks import ask, connected, run
from tests.support import save_random_model

Running = tuple[httpx.Client, Application]
TTL = 1000


@pytest.fixture(scope="module")
def two(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of two versions, 2 and 3, which it has served since its start."""
    parent = tmp_path_factory.mktemp("two")
    for version in (2, 3):
        save_version(parent / "question", version)
    with serve(models=parent, model_folders=(), grpc_port=0) as served:
        yield served


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def deploying(serve: Serve, tmp_path: Path, clock: HandClock) -> Iterator[Running]:
    """A server of version 1, whose clock stands still; at most three versions fit."""
    save_version(tmp_path / "question", 1)
    settings: dict[str, Any] = {"models": tmp_path, "model_folders": (), "model_control": True}
    settings |= {"clock": clock, "state_ttl_seconds": TTL, "stream_idle_seconds": 100}
    with serve(model_versions=3, **settings) as served:
        yield served


def deploy(running: Running, *versions: int) -> None:
    client, application = running
    folder = application.settings.models
    assert folder is not None
    for version in versions:
        save_version(folder / "question", version)
        reply = change(client, "question", "load")
        assert reply.status_code == 200, reply.text


def scores(reply: httpx.Response) -> Any:
    assert reply.status_code == 200, reply.text
    return reply.json()["results"][0]["scores"]


def state_of(client: httpx.Client, model: str = "question") -> str:
    reply = classify(client, model, return_state=True)
    return str(reply.json()["results"][0]["state"])


def ids(client: httpx.Client) -> list[str]:
    return [model["id"] for model in client.get("/v1/models").json()["data"]]


def ended(client: httpx.Client, reason: str) -> float:
    return metric(client, f'sru_model_versions_ended_total{{model="question",reason="{reason}"}}')


def over_v1(client: httpx.Client, _: Application, model: str) -> Any:
    return scores(classify(client, model))


def over_predict(client: httpx.Client, _: Application, model: str) -> Any:
    reply = client.post("/predict", params={"model": model}, json={"inputs": "who what where"})
    by_label = {each["label"]: each["score"] for each in reply.json()}
    return {label: by_label[label] for label in LABELS}


def over_a_socket(client: httpx.Client, _: Application, model: str) -> Any:
    async def talk() -> Any:
        async with connected(client) as connection:
            frame = {"model": model, "input": "who what where", "more": False}
            return (await ask(connection, **frame))["scores"]

    return run(talk)


def in_a_held_stream(client: httpx.Client, _: Application, model: str) -> Any:
    stream = client.post("/v1/streams", json={"model": model}).json()["id"]
    step = {"step": 1, "input": "who what where"}
    return scores(client.post(f"/v1/streams/{stream}/steps", json=step))


def over_kserve(client: httpx.Client, _: Application, model: str) -> Any:
    with kserve_connected(client) as connection:
        reply = connection.infer(model, [text_tensor("who what where")])
        return scored(reply)


def over_kserve_with_its_version(client: httpx.Client, _: Application, model: str) -> Any:
    name, _mark, version = model.partition("@")
    with kserve_connected(client) as connection:
        reply = connection.infer(name, [text_tensor("who what where")], model_version=version)
        return scored(reply)


def over_grpc(client: httpx.Client, application: Application, model: str) -> Any:
    return _over_grpc(application, model)


def over_grpc_with_its_version(_: httpx.Client, application: Application, model: str) -> Any:
    name, _mark, version = model.partition("@")
    return _over_grpc(application, name, model_version=version)


def _over_grpc(application: Application, model: str, **options: Any) -> Any:
    tensor = triton.InferInput("text", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"who what where"]], dtype=np.object_))
    with triton.InferenceServerClient(grpc_address(application)) as rpc:
        return scored(rpc.infer(model, [tensor], **options))


def scored(reply: Any) -> dict[str, float]:
    return dict(zip(LABELS, map(float, reply.as_numpy("scores")[0]), strict=True))


@pytest.mark.parametrize(
    "protocol",
    [
        over_v1, over_predict, over_a_socket, in_a_held_stream, over_kserve,
        over_kserve_with_its_version, over_grpc, over_grpc_with_its_version,
    ],
    ids=lambda protocol: protocol.__name__,
)  # fmt: skip
def test_an_id_with_a_version_names_it_in_every_protocol(
    two: Running, protocol: Callable[..., Any]
) -> None:
    client, application = two
    old, new = (scores(classify(client, f"question@{version}")) for version in (2, 3))
    assert old != new
    assert scores(classify(client)) == new
    assert protocol(client, application, "question@2") == pytest.approx(old, rel=1e-6)
    assert protocol(client, application, "question@3") == pytest.approx(new, rel=1e-6)


def test_all_versions_are_listed_in_every_protocol(two: Running) -> None:
    client, application = two
    assert ids(client) == ["question", "question@2"]
    about = {model["id"]: model for model in client.get("/v1/models").json()["data"]}
    assert [about[each]["version"] for each in about] == ["3", "2"]
    assert about["question"]["digest"] != about["question@2"]["digest"]
    assert client.get("/v1/models/question@2").json() == about["question@2"]
    assert client.get("/v2/models/question").json()["versions"] == ["2", "3"]
    assert client.get("/v2/models/question/versions/2").json()["versions"] == ["2", "3"]
    assert client.get("/v2/models/question/versions/2/ready").status_code == 200
    index = client.post("/v2/repository/index").json()
    assert [(each["version"], each["state"]) for each in index] == [("3", "READY"), ("2", "READY")]
    stats = client.get("/v2/models/stats").json()["model_stats"]
    assert [each["version"] for each in stats] == ["3", "2"]
    with triton.InferenceServerClient(grpc_address(application)) as rpc:
        assert rpc.get_model_metadata("question").versions == ["2", "3"]


@pytest.mark.parametrize(
    "model",
    ["question@", "question@03", "question@4", "question@999999999999999999999", "@2",
     "a@b@1", "question@2@2", "question@²", "question@ 2", "question@-1"],
)  # fmt: skip
def test_an_id_that_names_no_version_is_not_found(two: Running, model: str) -> None:
    client, application = two
    for reply in (
        classify(client, model),
        client.post("/v1/streams", json={"model": model}),
        client.get(f"/v1/models/{quote(model)}"),
    ):
        assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    with (
        triton.InferenceServerClient(grpc_address(application)) as rpc,
        pytest.raises(InferenceServerException, match="unknown model"),
    ):
        rpc.get_model_metadata(model)
    label = 'model="unknown",reason="model_not_found"'
    assert metric(client, f"sru_refusals_total{{{label}}}") >= 1
    assert model not in client.get("/metrics").text


def test_an_id_and_another_version_are_refused_together(two: Running) -> None:
    client, _ = two
    with (
        kserve_connected(client) as connection,
        pytest.raises(InferenceServerException, match="version 3 is not found"),
    ):
        connection.infer("question@2", [text_tensor("who")], model_version="3")
    with kserve_connected(client) as connection:
        reply = connection.infer("question@2", [text_tensor("who")], model_version="2")
        assert reply.get_response()["model_version"] == "2"


def test_a_state_goes_to_its_own_version_and_no_other_named_one(two: Running) -> None:
    client, _ = two
    for version, other in ((2, 3), (3, 2)):
        state = state_of(client, f"question@{version}")
        expected = scores(classify(client, f"question@{version}", state=state))
        assert scores(classify(client, state=state)) == expected
        assert scores(classify(client, None, state=state)) == expected  # type: ignore[arg-type]
        reply = classify(client, f"question@{other}", state=state)
        assert (reply.status_code, reply.json()["error"]["code"]) == (422, "state_wrong_model")


def test_a_state_over_kserve_goes_to_its_own_version(two: Running) -> None:
    client, _ = two
    with kserve_connected(client) as connection:
        begun = connection.infer(
            "question@2", [text_tensor("who")], parameters={"sru_return_state": True}
        )
        state = begun.get_response()["parameters"]["sru_state"]
        more = {"parameters": {"sru_state": state}}
        reply = connection.infer("question", [text_tensor("what")], **more)
        assert reply.get_response()["model_version"] == "2"
        with pytest.raises(InferenceServerException, match="belongs to another model"):
            connection.infer("question@3", [text_tensor("what")], **more)


def test_states_of_one_version_go_together_and_those_of_several_are_refused(two: Running) -> None:
    client, _ = two
    old, new = state_of(client, "question@2"), state_of(client, "question@3")
    body = {"model": "question", "input": ["who", "what"]}
    whole = client.post("/v1/classify", json={**body, "model": "question@2", "state": [old, None]})
    reply = client.post("/v1/classify", json={**body, "state": [old, None]})
    assert reply.json()["results"] == whole.json()["results"]
    reply = client.post("/v1/classify", json={**body, "state": [old, new]})
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "state_wrong_model")
    assert "versions 2 and 3" in reply.json()["error"]["message"]


@pytest.mark.parametrize("state", ["", "AAAA", "ä" * 90, "A" * 200])
def test_what_is_no_state_is_refused_as_ever(two: Running, state: str) -> None:
    reply = classify(two[0], state=state)
    assert reply.status_code == 422
    assert reply.json()["error"]["code"].startswith("state_")


def test_a_held_stream_is_of_the_version_that_it_began_with(two: Running) -> None:
    client, _ = two
    stream = client.post("/v1/streams", json={"model": "question@2"}).json()["id"]
    step = {"step": 1, "input": "who what where"}
    first = scores(client.post(f"/v1/streams/{stream}/steps", json=step))
    assert first == scores(classify(client, "question@2"))
    assert client.post(f"/v1/streams/{stream}/rewind", json={"step": 0}).status_code == 200
    assert scores(client.post(f"/v1/streams/{stream}/steps", json=step)) == first


def test_a_sequence_stays_with_its_version_and_refuses_another(two: Running) -> None:
    client, _ = two
    with kserve_connected(client) as connection:

        def infer(model: str, start: bool = False) -> str:
            options = {"sequence_id": 77, "sequence_start": start}
            reply = connection.infer(model, [text_tensor("who")], **options)
            return str(reply.get_response()["model_version"])

        assert infer("question@2", start=True) == "2"
        assert infer("question") == "2"
        with pytest.raises(InferenceServerException, match="another version of question than 3"):
            infer("question@3")
        assert infer("question@2") == "2"


def test_a_version_ends_when_its_last_state_can_no_longer_arrive(
    deploying: Running, clock: HandClock
) -> None:
    client, _ = deploying
    before = ended(client, "over")
    clock.now += 500  # no state before this counts
    state = state_of(client)
    deploy(deploying, 2)
    clock.now += TTL - 1
    assert scores(classify(client, state=state))
    assert ids(client) == ["question", "question@1"]
    clock.now += 1
    until(lambda: ids(client) == ["question"])
    assert classify(client, state=state).json()["error"]["code"] == "state_wrong_model"
    assert ended(client, "over") == before + 1
    until(lambda: metric(client, 'sru_model_versions{model="question",state="ending"}') == 0)


def test_a_socket_and_a_held_stream_keep_their_version_as_long_as_they_last(
    deploying: Running, clock: HandClock
) -> None:
    client, application = deploying
    life = application.lifecycle.catalogue.with_states("question").states.life
    stream = client.post("/v1/streams", json={"model": "question"}).json()["id"]

    async def talk() -> None:
        async with connected(client) as connection:
            await ask(connection, model="question", input="who")
            deploy(deploying, 2)
            clock.now += TTL + 1  # the stream expires, and no token is left
            until(lambda: life.refcount == 1)
            application.lifecycle.repository._ask_again.clear()
            assert "error" not in await ask(connection, input="what")
            assert ids(client) == ["question", "question@1"]

    run(talk)
    until(lambda: life.refcount == 0)
    until(lambda: ids(client) == ["question"])
    assert client.get(f"/v1/streams/{stream}").json()["error"]["code"] == "stream_expired"


def test_without_a_limit_on_states_a_version_stays(serve: Serve, tmp_path: Path) -> None:
    clock = HandClock()
    save_version(tmp_path / "question", 1)
    settings: dict[str, Any] = {"models": tmp_path, "model_folders": (), "model_control": True}
    with serve(clock=clock, state_ttl_seconds=0, **settings) as running:
        client, application = running
        deploy(running, 2)
        repository = application.lifecycle.repository
        clock.now += 1e9
        (old,) = [each for each in repository.catalogue.every() if each.version == "1"]
        assert not repository._local.is_over(old)
        assert ids(client) == ["question", "question@1"]


def test_one_version_too_many_ends_the_one_whose_last_state_is_oldest(
    deploying: Running, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    client, _ = deploying
    before = ended(client, "versions")
    first = state_of(client)
    deploy(deploying, 2)
    clock.now += 10
    second = state_of(client)
    deploy(deploying, 3)
    clock.now += 10
    assert scores(classify(client, state=first))
    first = str(classify(client, state=first, return_state=True).json()["results"][0]["state"])
    deploy(deploying, 4)
    assert ids(client) == ["question", "question@3", "question@1"]
    assert scores(classify(client, state=first))
    assert classify(client, state=second).json()["error"]["code"] == "state_wrong_model"
    assert ended(client, "versions") == before + 1
    (line,) = [each for each in caplog.records if "is no longer served" in each.message]
    assert line.levelname == "WARNING", "its streams end"


def steps_of_a_stream(client: httpx.Client, _: ExitStack) -> Callable[[], None]:
    stream = client.post("/v1/streams", json={"model": "question"}).json()["id"]
    numbers = count(1)

    def step() -> None:
        body = {"step": next(numbers), "input": "who"}
        reply = client.post(f"/v1/streams/{stream}/steps", json=body)
        assert reply.status_code == 200, reply.text

    return step


def frames_of_a_socket(client: httpx.Client, stack: ExitStack) -> Callable[[], None]:
    url = str(client.base_url).replace("http", "ws", 1).rstrip("/") + "/v1/stream"
    connection = stack.enter_context(open_websocket(url, ping_interval=None, open_timeout=60))
    connection.send(json.dumps({"model": "question", "input": "who"}))
    assert "error" not in json.loads(connection.recv(60))

    def frame() -> None:
        connection.send(json.dumps({"input": "who"}))
        assert "error" not in json.loads(connection.recv(60))

    return frame


@pytest.mark.parametrize("live", [steps_of_a_stream, frames_of_a_socket])
def test_a_version_whose_stream_continues_outlasts_one_that_had_a_request_before(
    deploying: Running,
    clock: HandClock,
    live: Callable[[httpx.Client, ExitStack], Callable[[], None]],
) -> None:
    client, _ = deploying
    with ExitStack() as stack:
        go_on = live(client, stack)
        go_on()
        deploy(deploying, 2, 3)
        clock.now += 10
        other = state_of(client, "question@2")
        clock.now += 10
        go_on()
        deploy(deploying, 4)
        assert ids(client) == ["question", "question@3", "question@1"]
        go_on()
    assert classify(client, state=other).json()["error"]["code"] == "state_wrong_model"


def test_a_new_version_that_does_not_fit_into_memory_ends_the_oldest_one(
    deploying: Running, monkeypatch: pytest.MonkeyPatch, clock: HandClock
) -> None:
    client, application = deploying
    before, load, repository = (
        ended(client, "memory"),
        Loader.load,
        application.lifecycle.repository,
    )

    def full(loader: Loader, folder: Path, *rest: Any) -> Served:
        if len(repository.engines) > 2:
            raise NoMemory("the GPU ran out of memory")
        return load(loader, folder, *rest)

    deploy(deploying, 2)
    clock.now += 10
    deploy(deploying, 3)
    monkeypatch.setattr(Loader, "load", full)
    deploy(deploying, 4)
    assert ids(client) == ["question", "question@3", "question@2"]
    assert ended(client, "memory") == before + 1

    def never(*_: Any) -> ServedModel:
        raise NoMemory("the GPU ran out of memory")

    monkeypatch.setattr(Loader, "load", never)
    reply = change(client, "question", "load")
    assert reply.status_code == 400
    assert (ids(client), version_of(client)) == (["question"], "4"), "what is current stays"


def test_one_version_is_unloaded_by_its_id_and_all_by_the_name(deploying: Running) -> None:
    client, _ = deploying
    deploy(deploying, 2, 3)
    assert change(client, "question@3", "unload").status_code == 200
    assert ids(client) == ["question", "question@1"]
    assert version_of(client) == "2"
    index = client.post("/v2/repository/index").json()
    assert {
        "name": "question",
        "version": "3",
        "state": "UNAVAILABLE",
        "reason": "unloaded",
    } in index
    assert change(client, "question@3", "unload").status_code == 404
    assert change(client, "question", "load").status_code == 200
    assert version_of(client) == "3"
    assert change(client, "question", "unload").status_code == 200
    assert ids(client) == []
    assert change(client, "question@2", "load").status_code == 404


def test_a_folder_without_the_newest_version_is_the_way_back(deploying: Running) -> None:
    client, application = deploying
    deploy(deploying, 2)
    state = state_of(client)
    folder = application.settings.models
    assert folder is not None
    rmtree(folder / "question" / "2")
    assert change(client, "question", "load").status_code == 200
    assert version_of(client) == "1"
    assert scores(classify(client, state=state)), "of version 2, which stays for it"


def test_an_import_in_place_keeps_the_former_weights_for_their_states_within_the_limit(
    serve: Serve, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"models": tmp_path, "model_folders": (), "model_control": True}

    def write(seed: int) -> None:
        save_random_model(tmp_path / "question", "classify", labels=LABELS, seed=seed, **WORDS)

    write(1)
    with serve(model_versions=3, **settings) as (client, application):
        states, expected = [], []
        for seed in (2, 3, 4, 5):
            states.append(state_of(client))
            expected.append(scores(classify(client, state=states[-1])))
            write(seed)
            assert change(client, "question", "load").status_code == 200
        assert ids(client) == ["question"]
        until(lambda: len(application.lifecycle.repository.engines) == 3)
        assert [scores(classify(client, state=state)) for state in states[2:]] == expected[2:]
        for state in states[:2]:
            assert classify(client, state=state).json()["error"]["code"] == "state_wrong_model"


def test_a_version_that_has_ended_leaves_nothing(deploying: Running, clock: HandClock) -> None:
    _, application = deploying
    network = weakref.ref(application.lifecycle.catalogue.with_states("question").model.network)
    gc.collect()
    gc.disable()
    try:
        deploy(deploying, 2)
        clock.now += TTL
        until(lambda: network() is None)
    finally:
        gc.enable()


def test_a_version_with_the_same_weights_shares_the_engine_of_the_other(
    deploying: Running,
) -> None:
    client, application = deploying
    folder = application.settings.models
    assert folder is not None
    copytree(folder / "question" / "1", folder / "question" / "2")
    (folder / "question" / "2" / "presets.json").write_text('{"start": "who what"}')
    assert change(client, "question", "load").status_code == 200
    assert len(application.lifecycle.repository.engines) == 1
    presets = [client.get(f"/v1/models/question@{v}").json()["presets"] for v in (1, 2)]
    assert presets == [[], ["start"]], "presets belong to a version"
    assert change(client, "question@1", "unload").status_code == 200
    assert scores(classify(client, preset="start"))


def test_a_restart_serves_the_newest_versions_and_their_states(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"models": tmp_path, "model_folders": (), "state_keys": "a" * 64}
    states = {}
    for version in (1, 2, 3, 4):
        save_version(tmp_path / "question", version)
    with serve(**settings) as (client, _):
        for version in (1, 2, 3, 4):
            states[version] = state_of(client, f"question@{version}")
    (tmp_path / "question" / "3" / "config.json").write_text("{}")
    with serve(model_versions=3, **settings) as (client, _):
        assert ids(client) == ["question", "question@2"]
        assert scores(classify(client, state=states[2]))
        assert classify(client, state=states[1]).json()["error"]["code"] == "state_wrong_model"
    assert "version 3 of question is not served" in caplog.text
    rmtree(tmp_path / "question" / "2")
    rmtree(tmp_path / "question" / "3")
    with serve(**settings) as (client, _):
        assert ids(client) == ["question", "question@1"]
        assert classify(client, state=states[2]).json()["error"]["code"] == "state_wrong_model"


def test_a_model_folder_with_the_mark_of_versions_in_its_name_is_refused(tmp_path: Path) -> None:
    save_random_model(tmp_path / "words", **WORDS)
    save_random_model(tmp_path / "a@b", **WORDS)
    with pytest.raises(SettingsError, match=r"has an '@'.*rename it"):
        find_models(load_settings(models=tmp_path))
    assert [*loadable_models(load_settings(models=tmp_path))] == ["words"]


def test_a_connection_of_triton_sees_each_version_ready(two: Running) -> None:
    client, _ = two
    with kserve_connected(client) as connection:
        assert isinstance(connection, triton_http.InferenceServerClient)
        for version, ready in (("2", True), ("3", True), ("4", False)):
            assert connection.is_model_ready("question", version) is ready
