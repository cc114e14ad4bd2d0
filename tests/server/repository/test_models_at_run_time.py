"""Models that come and go while clients send requests: not one of these fails."""

import json
import os
import shutil
import threading
from pathlib import Path

import httpx
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sruserve.model.versions import newest, versions
from sruserve.server.app import Application
from sruserve.server.repository import local_versions
from sruserve.server.repository.discovery import loadable_models
from sruserve.server.settings import Settings
from tests.server.conftest import Serve
from tests.server.held_steps import Steps
from tests.server.kserve.conftest import grpc_address
from tests.server.observing import until
from tests.server.repository.changing_models import (
    WORDS,
    always_asking,
    change,
    classify,
    more,
    save_version,
    texts,
    version_of,
)
from tests.support import save_random_model


def test_the_highest_version_is_served(running: tuple[httpx.Client, Application]) -> None:
    client, _ = running
    assert version_of(client) == "2"
    assert version_of(client, "words") == "1"


def test_a_new_version_takes_over_and_no_request_fails(
    running: tuple[httpx.Client, Application], models: Path
) -> None:
    client, _ = running
    old = texts([classify(client)])
    with always_asking(client, classify) as replies:
        for version in (3, 10):
            save_version(models / "question", version)
            assert change(client, "question", "load").status_code == 200
            assert version_of(client) == str(version)
            more(replies)
    assert {reply.status_code for reply in replies} == {200}
    assert len(texts(replies)) == 3
    assert old < texts(replies)


@pytest.mark.parametrize(
    ("path", "field"), [("/v1/classify", "input"), ("/predict?model=question", "inputs")]
)
def test_a_request_that_is_still_being_read_gets_the_engine_that_it_was_given(
    running: tuple[httpx.Client, Application], path: str, field: str
) -> None:
    client, _ = running
    body = {field: "what who where " * 4000}
    if field == "input":
        body["model"] = "question"

    def ask(client: httpx.Client) -> httpx.Response:
        return client.post(path, json=body)

    with always_asking(client, ask) as replies:
        for _ in range(3):
            assert change(client, "question", "unload").status_code == 200
            until(lambda: replies[-1].status_code == 404)
            assert change(client, "question", "load").status_code == 200
            more(replies)
    assert {reply.status_code for reply in replies} == {200, 404}


def test_a_long_reply_of_the_old_version_is_finished(
    running: tuple[httpx.Client, Application], models: Path, steps: Steps
) -> None:
    client, application = running
    body = {"model": "words", "prompt": "who", "max_tokens": 2500, "seed": 3}
    whole = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    parts: list[str] = []

    def ask() -> None:
        with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as reply:
            events = [line[6:] for line in reply.iter_lines() if line.startswith("data: {")]
            parts.extend(json.loads(event)["choices"][0]["text"] for event in events)

    thread = threading.Thread(target=ask)
    old = application.lifecycle.catalogue.with_states("words").engine
    steps.hold(old)
    thread.start()
    until(lambda: steps.waiting > 0)
    save_random_model(models / "words", **WORDS, hidden_size=48, seed=5)
    assert change(client, "words", "load").status_code == 200
    assert change(client, "words", "unload").status_code == 200
    assert old.running > 0
    assert client.post("/v1/completions", json=body).json()["error"]["code"] == "model_not_found"
    steps.go_on()
    thread.join(60)
    assert "".join(parts) == whole


def test_a_folder_whose_name_is_no_readable_id_is_not_there(
    running: tuple[httpx.Client, Application], models: Path
) -> None:
    client, _ = running
    for folder in (b"one\ntwo", b"x\xffy"):
        shutil.copytree(models / "words", models / os.fsdecode(folder))
    for name in ("one%0Atwo", "x%FFy", "x%ED%B3%BFy"):
        assert change(client, name, "load").status_code == 404
    index = client.post("/v2/repository/index", json={})
    assert {entry["name"] for entry in index.json()} == {"question", "words"}
    assert [client.get(path).status_code for path in ("/metrics", "/v1/models")] == [200, 200]


def test_a_state_of_the_old_version_continues_with_its_weights(
    running: tuple[httpx.Client, Application], models: Path
) -> None:
    client, _ = running
    state = classify(client, return_state=True).json()["results"][0]["state"]
    before = classify(client, state=state).json()["results"]
    save_version(models / "question", 3)
    assert change(client, "question", "load").status_code == 200
    assert classify(client, state=state).json()["results"] == before


def test_a_version_that_cannot_be_loaded_leaves_what_was_served(
    running: tuple[httpx.Client, Application], models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client, application = running
    (models / "question" / "3").mkdir()
    (models / "question" / "3" / "config.json").write_text("{}")
    with always_asking(client, classify) as replies:
        reply = change(client, "question", "load")
        assert reply.status_code == 400
        with (
            triton.InferenceServerClient(grpc_address(application)) as rpc,
            pytest.raises(InferenceServerException) as refused,
        ):
            rpc.load_model("question")
        for message in (reply.json()["error"], refused.value.message()):
            assert "'question' was not loaded" in message
            assert "(invalid_config); the server's log has the reason" in message
            assert str(models) not in message
        assert caplog.text.count(str(models / "question" / "3")) == 2
    assert {reply.status_code for reply in replies} == {200}
    assert version_of(client) == "2"


def test_a_folder_that_goes_while_it_is_looked_at_is_not_loaded(
    running: tuple[httpx.Client, Application],
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client, _ = running

    def find_and_remove(settings: Settings) -> dict[str, Path]:
        folders = loadable_models(settings)
        shutil.rmtree(models / "question")
        return folders

    monkeypatch.setattr(local_versions, "loadable_models", find_and_remove)
    reply = change(client, "question", "load")
    assert reply.status_code == 400
    assert "'question' was not loaded; the server's log has the reason" in reply.json()["error"]
    assert f"{models / 'question'} holds no model any more" in caplog.text
    assert classify(client).status_code == 200


def test_a_model_that_is_loaded_again_as_it_is_keeps_its_streams(
    running: tuple[httpx.Client, Application], models: Path
) -> None:
    client, application = running
    engine = application.lifecycle.catalogue.with_states("question").engine
    stream = client.post("/v1/streams", json={"model": "question"}).json()["id"]
    step = {"step": 1, "input": "who "}
    assert client.post(f"/v1/streams/{stream}/steps", json=step).status_code == 200
    shutil.copytree(models / "question" / "2", models / "question" / "4")
    (models / "question" / "4" / "presets.json").write_text('{"start": "who what"}')
    assert change(client, "question", "load").status_code == 200
    described = client.get("/v1/models/question").json()
    assert (described["version"], described["presets"]) == ("4", ["start"])
    assert application.lifecycle.catalogue.with_states("question").engine is engine
    step = {"step": 2, "input": "what"}
    assert client.post(f"/v1/streams/{stream}/steps", json=step).status_code == 200
    assert classify(client, preset="start").status_code == 200


def test_a_stream_of_a_version_that_was_unloaded_is_refused_by_the_new_one(
    running: tuple[httpx.Client, Application], models: Path
) -> None:
    client, application = running
    state = classify(client, return_state=True).json()["results"][0]["state"]
    body = {"model": "question", "state": state}
    streams = [client.post("/v1/streams", json=body).json()["id"] for _ in range(2)]
    step = {"step": 1, "input": "who "}
    assert client.post(f"/v1/streams/{streams[0]}/steps", json=step).status_code == 200
    save_version(models / "question", 3)
    assert change(client, "question", "load").status_code == 200
    assert change(client, "question@2", "unload").status_code == 200
    until(lambda: len(application.lifecycle.repository.engines) == 2)
    for stream, number in zip(streams, (2, 1), strict=True):
        reply = client.post(f"/v1/streams/{stream}/steps", json={**step, "step": number})
        assert reply.json()["error"]["code"] == "state_wrong_model"
        reply = client.get(f"/v1/streams/{stream}/state")
        assert reply.json()["error"]["code"] == "state_wrong_model"
        assert client.delete(f"/v1/streams/{stream}").status_code == 200


def test_many_changes_at_once_leave_one_engine(
    running: tuple[httpx.Client, Application],
) -> None:
    client, application = running
    replies: list[httpx.Response] = []

    def ask(what: str) -> None:
        with httpx.Client(base_url=client.base_url, timeout=60) as own:
            replies.append(change(own, "question", what))

    threads = [threading.Thread(target=ask, args=(w,)) for w in ("load", "unload", "load", "load")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert change(client, "question", "load").status_code == 200
    assert len(replies) == 4
    until(lambda: len(application.lifecycle.repository.engines) == 2)
    assert classify(client).status_code == 200


@pytest.mark.parametrize("name", ["..", "absent", "question%2F2", "%00"])
def test_nothing_but_the_operators_folders_is_loaded(
    running: tuple[httpx.Client, Application], name: str
) -> None:
    client, _ = running
    assert change(client, name, "load").status_code in (400, 404)


def test_models_are_changed_only_where_that_is_allowed(serve: Serve) -> None:
    with serve("question") as (client, _):
        for what in ("load", "unload"):
            reply = change(client, "question", what)
            assert reply.status_code == 403
            assert "SRUSERVE_MODEL_CONTROL=true" in reply.json()["error"]
        assert classify(client).status_code == 200


def test_versions_are_numbers_in_their_order(tmp_path: Path) -> None:
    for name in ("10", "9", "010", "0", "two", "9.1", "³"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "11").mkdir()
    assert [*versions(tmp_path)] == ["9", "10"]
    assert newest(tmp_path) == ("10", tmp_path / "10")
    shutil.copy(tmp_path / "9" / "config.json", tmp_path)
    assert versions(tmp_path) == {"1": tmp_path}
