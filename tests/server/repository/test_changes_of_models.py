"""Loads and unloads that wait for their turn: few of them, and only while their clients wait."""

import asyncio
import gc
import socket
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from shutil import copytree
from typing import Any

import httpx
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sruserve.model.errors import FolderError
from sruserve.server.app import Application
from sruserve.server.engine.engine import Engine
from sruserve.server.errors import Draining, ModelLoadFailed
from sruserve.server.lifecycle import Lifecycle
from sruserve.server.repository.loader import Loader
from sruserve.server.repository.repository import _MAX_WAITING, Repository
from sruserve.server.settings import load_settings
from sruserve.server.unheard import forget_frames
from tests.server.conftest import Serve
from tests.server.kserve.conftest import grpc_address
from tests.server.observing import until


class SlowLoads:
    """The names of the models that were loaded, and a gate before the loads that follow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.gate = threading.Event()
        load = Loader.load

        def slowly(loader: Loader, folder: Path, *rest: Any) -> Any:
            self.begun.append(folder.name)
            assert self.gate.wait(60)
            return load(loader, folder, *rest)

        monkeypatch.setattr(Loader, "load", slowly)


@pytest.fixture(scope="module")
def running(serve: Serve) -> Iterator[tuple[httpx.Client, Application]]:
    with serve("question", model_folders=(), model_control=True, grpc_port=0) as served:
        yield served


def ask(client: httpx.Client, name: str = "words") -> socket.socket:
    """Ask for a load; to leave, close the socket."""
    connection = socket.create_connection((client.base_url.host, client.base_url.port or 0), 60)
    path = f"/v2/repository/models/{name}/load"
    connection.sendall(f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n".encode())
    return connection


def waiting(application: Application) -> int:
    return application.lifecycle.repository._waiting.used


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_load_whose_client_left_before_its_turn_is_not_made(
    running: tuple[httpx.Client, Application], monkeypatch: pytest.MonkeyPatch, protocol: str
) -> None:
    client, application = running
    loads = SlowLoads(monkeypatch)
    first = ask(client, "question")
    until(lambda: loads.begun == ["question"])
    if protocol == "http":
        others = [ask(client) for _ in range(3)]
        until(lambda: waiting(application) == 3)
        for each in others:
            each.close()
    else:
        with (
            triton.InferenceServerClient(grpc_address(application)) as rpc,
            pytest.raises(InferenceServerException, match="Deadline"),
        ):
            rpc.load_model("words", client_timeout=1)
    until(lambda: waiting(application) == 0)
    before = application.lifecycle.catalogue["question"]
    first.close()  # its load runs, and is made whole
    loads.gate.set()
    until(lambda: application.lifecycle.catalogue["question"] is not before)
    reply = client.post("/v2/repository/models/ids/load")
    assert reply.status_code == 200
    assert loads.begun == ["question", "ids"]


def test_so_many_may_wait_and_no_more(
    running: tuple[httpx.Client, Application], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, application = running
    loads = SlowLoads(monkeypatch)
    with ExitStack() as connections:
        first = connections.enter_context(ask(client, "question"))
        until(lambda: loads.begun == ["question"])
        others = [connections.enter_context(ask(client)) for _ in range(_MAX_WAITING)]
        until(lambda: waiting(application) == _MAX_WAITING)
        for what in ("load", "unload"):
            reply = client.post(f"/v2/repository/models/words/{what}")
            assert reply.status_code == 429
            assert "already wait" in reply.json()["error"]
            assert reply.headers["retry-after"]
        loads.gate.set()
        for each in (first, *others):
            assert each.recv(1 << 16).startswith(b"HTTP/1.1 200")
    assert loads.begun.count("words") == _MAX_WAITING


@pytest.mark.parametrize("changed", [False, True], ids=["unchanged", "changed"])
def test_changes_that_meet_a_drain_leave_the_engine_that_drains_alone(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    loads, ended = SlowLoads(monkeypatch), list[tuple[Engine, float]]()
    drain = Engine.drain

    def see(engine: Engine, timeout_seconds: float) -> None:
        ended.append((engine, timeout_seconds))
        drain(engine, timeout_seconds)

    monkeypatch.setattr(Engine, "drain", see)
    copytree(folders / "question", tmp_path / "question" / "1")

    async def talk() -> None:
        lifecycle = Lifecycle(load_settings(models=tmp_path, model_control=True))
        loads.gate.set()
        await lifecycle.start()
        loads.gate.clear()
        served = lifecycle.catalogue["question"]
        if changed:
            copytree(folders / "whole", tmp_path / "question" / "2")
        first = asyncio.create_task(lifecycle.load("question"))
        while len(loads.begun) < 2:
            await asyncio.sleep(0.01)
        waits = asyncio.create_task(lifecycle.load("question"))
        await asyncio.sleep(0)
        stopping = asyncio.create_task(lifecycle.repository.stop(5))
        await asyncio.sleep(0)
        loads.gate.set()
        for refused in (first, waits, lifecycle.load("question"), lifecycle.unload("question")):
            with pytest.raises(Draining):
                await refused
        await stopping
        assert lifecycle.catalogue["question"] is served
        assert [each for each in ended if each[0] is served.engine] == [(served.engine, 5)]
        assert len(ended) == 1 + changed

    asyncio.run(asyncio.wait_for(talk(), 60))
    assert len(loads.begun) == 2


class Weights:
    """What a load has read when it fails."""


@pytest.mark.parametrize("leaves", [True, False])
def test_a_load_that_fails_lets_its_weights_go(folders: Path, leaves: bool) -> None:
    read: list[weakref.ref[Weights]] = []
    gate = threading.Event()

    class Failing(Loader):
        def __init__(self) -> None: ...

        def load(self, *_: Any) -> Any:
            weights = Weights()
            read.append(weakref.ref(weights))
            assert gate.wait(60)
            raise FolderError("was changed after its import")

    async def talk() -> None:
        repository = Repository(load_settings(models=folders, model_control=True))
        repository._local.loader = Failing()
        loading = asyncio.create_task(repository.load("question"))
        while not read:
            await asyncio.sleep(0.001)
        if leaves:
            loading.cancel()
            await asyncio.wait([loading])
        gate.set()
        if not leaves:
            with pytest.raises(ModelLoadFailed) as caught:
                await loading
            forget_frames(caught.value)  # as an endpoint does after its reply
            del caught
        del loading
        async with asyncio.timeout(60):
            while read[0]() is not None:
                await asyncio.sleep(0.001)

    gc.disable()
    try:
        asyncio.run(asyncio.wait_for(talk(), 60))
    finally:
        gc.enable()
