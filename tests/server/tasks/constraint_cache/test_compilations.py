"""Hostile grammars over the wire: they are refused, and everybody else is served."""

import asyncio
import gc
import os
import signal
import socket
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from sruserve.server.engine.constrained import process_host
from sruserve.server.engine.constrained.process_client import Bounds, GrammarProcess
from sruserve.server.errors import NoProcess
from sruserve.server.json_output import long_json
from sruserve.server.tasks import constraint_cache as module
from sruserve.server.tasks.constraint_cache import (
    ConstraintCache,
)
from tests.memory import grows_by_less, malloc_bytes
from tests.server.conftest import Serve
from tests.server.engine.constrained.grammar_processes import MANY_AT_ONCE, is_gone
from tests.server.http.json_requests import connect
from tests.server.observing import until
from tests.server.posting import refusal
from tests.server.processes import ended, serving
from tests.server.tasks.constraint_cache.conftest import Running
from tests.server.tasks.constraint_cache.requests import body, complete, stopped
from tests.support import save_random_model


def test_what_is_too_long_is_refused_without_the_event_loop(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def noted(value: object) -> bytes:
        threads.append(threading.current_thread().name.split()[0])
        return long_json(value)

    monkeypatch.setattr(module, "json_bytes", noted)
    monkeypatch.setattr(module, "long_json", noted)
    long: dict[str, Any] = {"regex": "a" * 262_145, "json_schema": {"enum": ["a" * 262_144]}}
    for field, value in long.items():
        request = body(**{field: value})
        reply = client.post("/v1/completions", json=request)
        assert "262144 bytes" in refusal(reply, 422, "invalid_request", field)
    assert threads == ["offload"]


HOSTILE: list[dict[str, Any]] = [
    {"json_schema": MANY_AT_ONCE},
    {"regex": "((a{1000}){1000}){1000}"},
    {"regex": "a" * 300_000},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": MANY_AT_ONCE}}},
    {"json_schema": {"enum": ["x" * 300_000]}},
]


@pytest.mark.parametrize("constraint", HOSTILE, ids=lambda settings: str(settings)[:40])
def test_a_grammar_that_takes_too_much_is_refused_and_the_server_does_not_grow(
    client: httpx.Client, constraint: dict[str, Any]
) -> None:
    def refuse() -> None:
        refusal(complete(client, **constraint), 422, "invalid_request", next(iter(constraint)))

    assert grows_by_less(8 << 20, malloc_bytes, refuse)
    assert complete(client, regex="[0-9]{5}").json()["choices"][0]["text"].isdigit()


def test_eighty_bytes_do_not_take_the_process(client: httpx.Client) -> None:
    reply = complete(client, regex="a{100000000}")
    assert reply.json()["choices"][0]["text"] == "aaaaa"


def test_over_kserve_the_same_bounds_hold(client: httpx.Client) -> None:
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}
    parameters = {"regex": "((a{1000}){1000}){1000}", "max_tokens": 5}
    body = {"inputs": [tensor], "parameters": parameters}
    reply = client.post("/v2/models/bytes/infer", json=body)
    assert reply.status_code in (400, 422), reply.text
    assert "simplify" in reply.text
    assert client.get("/readyz").status_code == 200


def test_the_cache_is_bounded_in_processes_and_bytes(
    client: httpx.Client, grammars: ConstraintCache
) -> None:
    for number in range(12):
        assert complete(client, regex=f"[a-z]{{{number + 1}}}").status_code == 200
    memory = grammars.store.memory
    assert memory.used_bytes <= 32 << 20
    assert 1 < len(memory) < 6
    helper = psutil.Process(grammars.host.pid)
    until(lambda: len(helper.children()) == len(memory))


def test_a_grammar_whose_process_was_killed_is_compiled_again(
    client: httpx.Client, grammars: ConstraintCache
) -> None:
    assert complete(client, regex="[a-z]{3}z").status_code == 200
    processes = psutil.Process(grammars.host.pid).children()
    for process in processes:
        process.kill()
    until(lambda: all(is_gone(process.pid) for process in processes))
    assert complete(client, regex="[a-z]{3}z").status_code == 200


def test_grammars_whose_processes_end_while_they_are_followed_leave_nothing(
    client: httpx.Client, grammars: ConstraintCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = {"type": "array", "items": {"type": "integer"}, "minItems": 100_000_000}
    grammars.store.entries.clear()
    assert complete(client, regex="first").status_code == 200
    fds = psutil.Process().num_fds()
    monkeypatch.setattr(grammars, "_bounds", Bounds(step_seconds=0.004))
    for number in range(12):
        schema = {"anyOf": [{"const": f"s{number}"}, endless]}
        reply = complete(client, json_schema=schema, logit_bias={"91": 100})
        refusal(reply, 422, "invalid_request", None)
        assert len(grammars.store.entries) <= 2
    until(lambda: psutil.Process().num_fds() <= fds + 2)


def test_a_client_that_leaves_gives_its_place_back_and_ends_the_compilation(
    client: httpx.Client, grammars: ConstraintCache
) -> None:
    key = {"authorization": "Bearer 11111111"}
    with stopped(grammars, client):
        gone = connect(client, "/v1/completions", body(regex="[a-z]{77}"), **key)
        until(lambda: len(grammars.compiling) == 1)
        gone.close()
        until(lambda: len(grammars.compiling) == 0)
        until(lambda: grammars.waiting == 0)
    assert complete(client, regex="[a-z]{77}").status_code == 200


def test_the_process_of_a_grammar_that_is_refused_when_its_client_has_left_is_let_go(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, processes = running[1].lifecycle.catalogue.with_states("bytes"), list[Any]()
    start = GrammarProcess.start

    async def noted(process: GrammarProcess) -> None:
        processes.append(weakref.ref(process))
        await start(process)

    monkeypatch.setattr(GrammarProcess, "start", noted)

    async def leave(constraints: ConstraintCache) -> None:
        """Leave when the grammar was refused, and before the reply."""
        waiting = asyncio.create_task(constraints._wait(b"", "regex", "(", served, 0.0))
        while not constraints.compiling:
            await asyncio.sleep(0)
        constraints.compiling[b""].task.add_done_callback(lambda _: waiting.cancel())
        await asyncio.wait([waiting])
        assert waiting.cancelled()

    async def talk() -> None:
        constraints = ConstraintCache(32 << 20)
        await leave(constraints)
        await asyncio.sleep(0)
        assert [process() for process in processes] == [None]
        constraints.close()

    gc.disable()
    try:
        asyncio.run(asyncio.wait_for(talk(), 60))
    finally:
        gc.enable()


def test_who_asks_for_the_same_as_somebody_who_leaves_still_gets_it(
    client: httpx.Client, grammars: ConstraintCache
) -> None:
    key = {"authorization": "Bearer 11111111"}
    with ThreadPoolExecutor(1) as pool:
        with stopped(grammars, client):
            gone = connect(client, "/v1/completions", body(regex="[a-z]{78}"), **key)
            until(lambda: len(grammars.compiling) == 1)
            stays = pool.submit(complete, client, regex="[a-z]{78}")
            until(lambda: [each.waiters for each in grammars.compiling.values()] == [2])
            gone.close()
            until(lambda: [each.waiters for each in grammars.compiling.values()] == [1])
        assert stays.result().status_code == 200


def test_a_wait_that_is_long_ends_in_504(
    client: httpx.Client, grammars: ConstraintCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stopped(grammars, client):
        monkeypatch.setattr(grammars, "timeout_seconds", 3600)  # longer than the client waits
        reply = complete(client, regex="[a-z]{79}", timeout_ms=50)
        refusal(reply, 504, "deadline_exceeded", None)
        monkeypatch.setattr(grammars, "timeout_seconds", 0.05)
        refusal(complete(client, regex="[a-z]{79}"), 504, "deadline_exceeded", None)
    until(lambda: grammars.waiting == 0)


def test_grammars_in_use_that_leave_no_room_are_a_429(
    client: httpx.Client, grammars: ConstraintCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammars.store.entries.clear()
    assert complete(client, regex="first").status_code == 200
    monkeypatch.setattr(grammars.store, "max_processes", 2)
    for pattern in ("second", "third"):
        assert complete(client, regex=pattern).status_code == 200  # the one before lets go
    in_use = next(iter(grammars.store.entries.values())).constraint
    refusal(complete(client, regex="fourth"), 429, "overloaded", None)
    assert [cached.constraint for cached in grammars.store.entries.values()] == [in_use]


@pytest.mark.parametrize("what", ["process", "thread"])
def test_where_no_process_can_be_started_it_is_said_and_kept_ones_make_way(
    client: httpx.Client, grammars: ConstraintCache, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    async def no_process() -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.close()  # as the helper does, if it cannot fork
        return ours

    def no_thread(*_: Any) -> None:
        raise NoProcess

    grammars.store.entries.clear()
    assert complete(client, regex="kept").status_code == 200
    with monkeypatch.context() as patch:
        if what == "process":
            patch.setattr(grammars.host, "fork", no_process)
        else:
            grammars.host.close()
            patch.setattr(process_host, "run_in_thread", no_thread)
        message = refusal(complete(client, regex="new"), 503, "no_process", None)
    assert "process limits" in message
    assert not grammars.store.entries
    assert complete(client, regex="new").status_code == 200


def test_grammars_of_a_model_that_is_unloaded_end_with_it(serve: Serve, tmp_path: Path) -> None:
    for name in ("bytes", "others"):
        save_random_model(tmp_path / name, vocabulary=list(range(256)))
    with serve(models=tmp_path, model_folders=(), model_control=True) as (client, application):
        grammars = application.constraints
        for model in ("bytes", "others"):
            assert complete(client, model=model, regex="a").status_code == 200
        helper = psutil.Process(grammars.host.pid)
        assert client.post("/v2/repository/models/bytes/unload").status_code == 200
        until(lambda: len(helper.children()) == 1)
        assert len(grammars.store.entries) == 1
        assert complete(client, model="others", regex="a").status_code == 200
        assert len(grammars.store.entries) == 1


def test_a_server_that_is_stopped_while_a_grammar_is_compiled_ends(folder: Path) -> None:
    with serving(folder, drain_seconds="1") as (client, process):
        assert client.post("/v1/completions", json=body(regex="a")).status_code == 200
        (helper,) = psutil.Process(process.pid).children()
        os.kill(helper.pid, signal.SIGSTOP)
        waits = connect(client, "/v1/completions", body(regex="b"))
        client.get("/metrics")  # the request before it is read by now
        process.terminate()
        ended(process)
        waits.close()
        until(lambda: is_gone(helper.pid))
