"""What a model that is unloaded or replaced leaves to whom it serves, and what it frees."""

import asyncio
import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import httpx
import pytest

from sruserve.server.app import Application
from sruserve.server.engine.job_engine import JobEngine
from sruserve.server.repository.device import NoMemory
from sruserve.server.repository.fleet import WorkerRefused, _OwnChange
from sruserve.server.repository.loader import Loader
from sruserve.server.repository.local_versions import _MAX_RETIRING
from sruserve.server.repository.served import InFlight, Served
from sruserve.server.tuning import Tuning
from tests.server.conftest import Serve
from tests.server.held_steps import Steps
from tests.server.observing import until
from tests.server.repository.changing_models import (
    WORDS,
    change,
    classify,
    save_version,
    version_of,
    without_threads,
)
from tests.server.websocket.talks import ask, completed, connected, run
from tests.support import save_random_model


def test_an_idle_socket_holds_no_model_that_is_unloaded(
    running: tuple[httpx.Client, Application],
) -> None:
    client, application = running
    network = weakref.ref(application.lifecycle.catalogue.with_states("words").model.network)

    async def talk() -> None:
        async with connected(client) as connection:
            await completed(connection, model="words", prompt="who", max_tokens=1)
            reply = await asyncio.to_thread(change, client, "words", "unload")
            assert reply.status_code == 200
            async with asyncio.timeout(60):
                while network() is not None:
                    gc.collect()
                    await asyncio.sleep(0.01)
            assert (await ask(connection, op="state"))["state"]

    run(talk)


def test_a_socket_continues_with_the_weights_that_it_began_with(
    running: tuple[httpx.Client, Application], models: Path, steps: Steps
) -> None:
    client, application = running
    body = {"model": "words", "prompt": "who", "max_tokens": 2500, "seed": 3}
    whole = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    old = application.lifecycle.catalogue.with_states("words").engine

    async def change_now(what: str) -> int:
        return (await asyncio.to_thread(change, client, "words", what)).status_code

    async def talk() -> None:
        async with connected(client) as connection:
            steps.hold(old)
            pending = asyncio.create_task(completed(connection, **body))
            await asyncio.to_thread(until, lambda: steps.waiting > 0)
            assert await change_now("unload") == 200
            steps.go_on()
            assert (await pending)[0] == whole
            reply = await ask(connection, max_tokens=1)
            assert reply["error"]["code"] == "model_not_found"
            state = (await ask(connection, op="state"))["state"]
            assert await change_now("load") == 200
            more = {"prompt": "", "max_tokens": 9}
            rest = client.post("/v1/completions", json={"model": "words", "state": state, **more})
            assert (await completed(connection, **more))[0] == rest.json()["choices"][0]["text"]
            state = (await ask(connection, op="state"))["state"]
            rest = client.post("/v1/completions", json={"model": "words", "state": state, **more})
            save_random_model(models / "words", **WORDS, hidden_size=48, seed=5)
            assert await change_now("load") == 200
            assert (await completed(connection, **more))[0] == rest.json()["choices"][0]["text"]
            assert await change_now("unload") == 200
            assert await change_now("load") == 200
            reply = await ask(connection, max_tokens=1)
            assert reply["error"]["code"] == "state_wrong_model"

    run(talk)


def test_a_frame_that_is_still_being_read_gets_the_engine_that_it_was_given(
    running: tuple[httpx.Client, Application],
) -> None:
    client, application = running
    frame = {"input": "what who where " * 20_000, "more": False}
    codes = []

    async def talk() -> None:
        async with connected(client) as connection:
            await ask(connection, model="question")
            for _ in range(8):
                pending = asyncio.create_task(ask(connection, **frame))
                while not (application.limits.reading.used or pending.done()):
                    await asyncio.sleep(0.001)
                for what in ("unload", "load"):
                    assert (await asyncio.to_thread(change, client, "question", what)).is_success
                codes.append((await pending).get("error", {}).get("code"))

    run(talk)
    assert set(codes) <= {None, "model_not_found"}
    assert None in codes


def test_an_unloaded_model_leaves_nothing(
    running: tuple[httpx.Client, Application],
) -> None:
    client, application = running
    state = classify(client, return_state=True).json()["results"][0]["state"]
    stream = client.post("/v1/streams", json={"model": "question"}).json()["id"]
    step = {"step": 1, "input": "who "}
    assert client.post(f"/v1/streams/{stream}/steps", json=step).status_code == 200
    engine = weakref.ref(application.lifecycle.catalogue.with_states("question").engine)
    gc.collect()
    gc.disable()  # what is held in a circle would stay for long in a server, too
    try:
        assert change(client, "question", "unload").status_code == 200
        until(lambda: engine() is None)
    finally:
        gc.enable()
    reply = classify(client)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["words"]
    assert 'sru_streams{model="question",tier="pool"} 0.0' in client.get("/metrics").text
    assert client.get("/readyz").status_code == 200
    assert change(client, "question", "load").status_code == 200
    assert classify(client, state=state).status_code == 200
    reply = client.post(f"/v1/streams/{stream}/steps", json={**step, "step": 2})
    assert reply.json()["error"]["code"] == "state_wrong_model"
    assert client.delete(f"/v1/streams/{stream}").status_code == 200


def test_an_unloaded_model_ends_even_if_no_thread_can_be_started(
    running: tuple[httpx.Client, Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, application = running
    engine = application.lifecycle.catalogue.with_states("question").engine
    ended: list[JobEngine] = []
    application.lifecycle.repository.on_end.append(ended.append)
    without_threads(monkeypatch, "")
    assert change(client, "question", "unload").status_code == 200
    until(lambda: ended == [engine])
    assert not engine._thread.is_alive()


@pytest.mark.parametrize("prefix", ["", "engine "])
def test_a_load_for_which_no_thread_can_be_started_is_refused_and_may_be_sent_again(
    running: tuple[httpx.Client, Application],
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
    prefix: str,
) -> None:
    client, _ = running
    save_version(models / "question", 3)
    with monkeypatch.context() as patch:
        without_threads(patch, prefix)
        reply = change(client, "question", "load")
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert "cannot start a process or thread" in reply.json()["error"]
    assert version_of(client) == "2"
    assert change(client, "question", "load").status_code == 200
    assert version_of(client) == "3"


def test_few_engines_of_a_name_may_finish_what_they_began(
    running: tuple[httpx.Client, Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, application = running
    over = threading.Event()

    async def wait_in_flight(_: InFlight) -> None:
        while not over.is_set():
            await asyncio.sleep(0.01)

    monkeypatch.setattr(InFlight, "wait_idle", wait_in_flight)
    try:
        for _ in range(_MAX_RETIRING - 1):
            assert change(client, "question", "unload").status_code == 200
            assert change(client, "question", "load").status_code == 200
        assert change(client, "question", "unload").status_code == 200
        refused = change(client, "question", "load")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert "still finish their requests" in refused.json()["error"]
        assert change(client, "words", "load").status_code == 200, "another name"
    finally:
        over.set()
    until(lambda: len(application.lifecycle.repository.engines) == 1)
    assert change(client, "question", "load").status_code == 200
    assert classify(client).status_code == 200


def test_a_load_that_cannot_be_committed_leaves_no_engine(
    running: tuple[httpx.Client, Application], models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, application = running
    before = len(application.lifecycle.repository.engines)
    save_version(models / "question", 3)

    async def full(*_: object) -> None:
        raise WorkerRefused("the change could not be stored")

    with monkeypatch.context() as patch:
        patch.setattr(_OwnChange, "commit", full)
        assert change(client, "question", "load").status_code == 400
    assert application.lifecycle.repository._local._prepared == {}
    assert len(application.lifecycle.repository.engines) == before
    assert change(client, "question", "load").status_code == 200


def test_the_log_has_no_name_that_is_not_served(
    running: tuple[httpx.Client, Application], caplog: pytest.LogCaptureFixture
) -> None:
    client, _ = running
    for what in ("load", "unload"):
        assert change(client, "marker", what).status_code == 404
    assert "model_not_found" in caplog.text
    assert not [line for line in caplog.messages if "marker" in line and "HTTP" not in line]


def test_a_version_that_makes_room_is_waited_for_only_so_long(
    serve: Serve, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, load = threading.Event(), Loader.load

    async def wait_in_flight(_: InFlight) -> None:
        while not over.is_set():
            await asyncio.sleep(0.01)

    def full(loader: Loader, folder: Path, version: str, *rest: Any) -> Served:
        if version == "4" and not over.is_set():
            raise NoMemory("the GPU ran out of memory")
        return load(loader, folder, version, *rest)

    monkeypatch.setattr(InFlight, "wait_idle", wait_in_flight)
    monkeypatch.setattr(Loader, "load", full)
    options: dict[str, Any] = {"models": models, "model_folders": (), "model_control": True}
    with serve(drain_seconds=0, tuning=Tuning(unload_seconds=0.0), **options) as (client, _):
        try:
            save_version(models / "question", 3)
            assert change(client, "question", "load").status_code == 200
            save_version(models / "question", 4)
            refused = change(client, "question", "load")
            assert refused.status_code == 503, refused.text
            assert "still finishes its requests" in refused.json()["error"]
        finally:
            over.set()
        assert change(client, "question", "load").status_code == 200


def test_versions_that_new_requests_need_are_loaded_before_older_ones(
    serve: Serve, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[tuple[str, str]] = []
    load = Loader.load

    def note(loader: Loader, folder: Path, version: str, *rest: Any) -> Served:
        loaded.append((folder.name, version))
        return load(loader, folder, version, *rest)

    monkeypatch.setattr(Loader, "load", note)
    save_version(models / "question", 3)
    with serve(models=models, model_folders=()) as (client, _):
        assert loaded == [("question", "3"), ("words", "1"), ("question", "2")]
        listed = [model["id"] for model in client.get("/v1/models").json()["data"]]
        assert listed == ["question", "question@2", "words"]
