"""Models that come and go while clients send requests: not one of these fails."""

import asyncio
import gc
import json
import shutil
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sruserve.model.versions import newest, versions
from sruserve.server.app import Application
from sruserve.server.engine.engine import Engine
from sruserve.server.repository.repository import _MAX_RETIRING
from sruserve.server.repository.served_model import InFlight
from tests.server.conftest import LABELS, Serve, words_vocabulary
from tests.server.held_steps import Steps
from tests.server.kserve.conftest import grpc_address
from tests.server.observing import until
from tests.server.processes import start
from tests.server.websocket.talks import ask, completed, connected, run
from tests.support import save_random_model

WORDS: dict[str, Any] = {"vocabulary": words_vocabulary(), "vocab_size": 16}


def save_version(folder: Path, version: int) -> Path:
    """A version of a classifier, with weights of its own."""
    return save_random_model(
        folder / str(version),
        "classify",
        labels=LABELS,
        seed=version,
        **WORDS,
    )


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder of two models: `question` in version 2, `words` without versions."""
    save_version(tmp_path / "question", 2)
    save_random_model(tmp_path / "words", **WORDS, hidden_size=48)
    return tmp_path


@pytest.fixture
def running(serve: Serve, models: Path) -> Iterator[tuple[httpx.Client, Application]]:
    with serve(models=models, model_folders=(), model_control=True, grpc_port=0) as served:
        yield served


def change(client: httpx.Client, name: str, what: str) -> httpx.Response:
    """Load or unload a model."""
    return client.post(f"/v2/repository/models/{name}/{what}")


def classify(client: httpx.Client, model: str = "question", **body: Any) -> httpx.Response:
    return client.post("/v1/classify", json={"model": model, "input": "who what where", **body})


def version_of(client: httpx.Client, name: str = "question") -> str:
    return str(client.get(f"/v1/models/{name}").json()["version"])


@contextmanager
def always_asking(
    client: httpx.Client, ask: Callable[[httpx.Client], httpx.Response]
) -> Iterator[list[httpx.Response]]:
    """Three clients that ask all the time while the block runs; their replies."""
    replies: list[httpx.Response] = []
    over = threading.Event()

    def run() -> None:
        with httpx.Client(base_url=client.base_url, timeout=60) as own:
            while not over.is_set():
                replies.append(ask(own))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        more(replies)
        yield replies
        more(replies)
    finally:
        over.set()
        for thread in threads:
            thread.join(60)


def more(replies: list[httpx.Response]) -> None:
    """Wait for some more of them."""
    seen = len(replies)
    until(lambda: len(replies) > seen + 10)


def texts(replies: Sequence[httpx.Response]) -> set[str]:
    return {json.dumps(reply.json()["results"][0]["scores"]) for reply in replies}


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
    got: list[str] = []

    def ask() -> None:
        with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as reply:
            events = [line[6:] for line in reply.iter_lines() if line.startswith("data: {")]
            got.extend(json.loads(event)["choices"][0]["text"] for event in events)

    thread = threading.Thread(target=ask)
    old = application.lifecycle.catalogue["words"].engine
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
    assert "".join(got) == whole


def test_an_idle_socket_holds_no_model_that_is_unloaded(
    running: tuple[httpx.Client, Application],
) -> None:
    client, application = running
    network = weakref.ref(application.lifecycle.catalogue["words"].model.network)

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


def test_a_socket_goes_on_with_the_same_model_and_with_no_other(
    running: tuple[httpx.Client, Application], models: Path, steps: Steps
) -> None:
    client, application = running
    body = {"model": "words", "prompt": "who", "max_tokens": 2500, "seed": 3}
    whole = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    old = application.lifecycle.catalogue["words"].engine

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
            save_random_model(models / "words", **WORDS, hidden_size=48, seed=5)
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


def test_an_unloaded_model_leaves_nothing_behind(
    running: tuple[httpx.Client, Application],
) -> None:
    client, application = running
    state = classify(client, return_state=True).json()["results"][0]["state"]
    stream = client.post("/v1/streams", json={"model": "question"}).json()["id"]
    step = {"step": 1, "input": "who "}
    assert client.post(f"/v1/streams/{stream}/steps", json=step).status_code == 200
    engine = weakref.ref(application.lifecycle.catalogue["question"].engine)
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


def without_threads(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    """No thread whose name begins like that can be started."""
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(prefix):
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)


def test_an_unloaded_model_ends_even_if_no_thread_can_be_started(
    running: tuple[httpx.Client, Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, application = running
    engine = application.lifecycle.catalogue["question"].engine
    ended: list[Engine] = []
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


def test_a_state_of_the_old_version_is_refused_by_the_new_one(
    running: tuple[httpx.Client, Application], models: Path
) -> None:
    client, _ = running
    state = classify(client, return_state=True).json()["results"][0]["state"]
    save_version(models / "question", 3)
    assert change(client, "question", "load").status_code == 200
    assert classify(client, state=state).json()["error"]["code"] == "state_wrong_model"


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


def test_a_model_that_is_loaded_again_as_it_is_keeps_its_streams(
    running: tuple[httpx.Client, Application], models: Path
) -> None:
    client, application = running
    engine = application.lifecycle.catalogue["question"].engine
    stream = client.post("/v1/streams", json={"model": "question"}).json()["id"]
    step = {"step": 1, "input": "who "}
    assert client.post(f"/v1/streams/{stream}/steps", json=step).status_code == 200
    shutil.copytree(models / "question" / "2", models / "question" / "4")
    (models / "question" / "4" / "presets.json").write_text('{"start": "who what"}')
    assert change(client, "question", "load").status_code == 200
    described = client.get("/v1/models/question").json()
    assert (described["version"], described["presets"]) == ("4", ["start"])
    assert application.lifecycle.catalogue["question"].engine is engine
    step = {"step": 2, "input": "what"}
    assert client.post(f"/v1/streams/{stream}/steps", json=step).status_code == 200
    assert classify(client, preset="start").status_code == 200


def test_a_stream_of_the_old_version_is_refused_by_the_new_one(
    running: tuple[httpx.Client, Application], models: Path
) -> None:
    client, _ = running
    state = classify(client, return_state=True).json()["results"][0]["state"]
    body = {"model": "question", "state": state}
    streams = [client.post("/v1/streams", json=body).json()["id"] for _ in range(2)]
    step = {"step": 1, "input": "who "}
    assert client.post(f"/v1/streams/{streams[0]}/steps", json=step).status_code == 200
    save_version(models / "question", 3)
    assert change(client, "question", "load").status_code == 200
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


def test_several_workers_whose_models_may_change_do_not_start(models: Path) -> None:
    process = start(str(models / "question"), workers="2", model_control="true")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert len(output.splitlines()) == 1
    assert "SRUSERVE_WORKERS=2" in output
    assert "SRUSERVE_MODEL_CONTROL to false" in output


def test_versions_are_numbers_in_their_order(tmp_path: Path) -> None:
    for name in ("10", "9", "010", "0", "two", "9.1", "³"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    (tmp_path / "11").mkdir()
    assert [*versions(tmp_path)] == ["9", "10"]
    assert newest(tmp_path) == ("10", tmp_path / "10")
    shutil.copy(tmp_path / "9" / "config.json", tmp_path)
    assert versions(tmp_path) == {"1": tmp_path}
