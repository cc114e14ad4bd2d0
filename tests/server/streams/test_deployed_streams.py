"""Held streams, in memory and in Redis, stay with their weights across deployments."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import Serve
from tests.server.observing import until
from tests.server.repository.changing_models import change, save_version
from tests.server.streams.conftest import KEYS, Replicas

STEP = {"input": "who what where ", "more": True}


@pytest.fixture(params=["memory", "redis"])
def deploying(
    request: pytest.FixtureRequest, serve: Serve, tmp_path: Path
) -> Iterator[tuple[Replicas, Path]]:
    """One server that holds streams in its memory, or two that share a Redis; their folder."""
    save_version(tmp_path / "question", 1)
    settings: dict[str, Any] = {"models": tmp_path, "model_folders": (), "model_control": True}
    count = 1
    if request.param == "redis":
        port, count = request.getfixturevalue("redis_port"), 2
        settings |= {"state_keys": KEYS, "store": f"redis://127.0.0.1:{port}/9"}
    with ExitStack() as stack:
        running = [stack.enter_context(serve(**settings)) for _ in range(count)]
        yield Replicas(running, request.param), tmp_path


def deploy(replicas: Replicas, folder: Path, version: int) -> None:
    save_version(folder / "question", version)
    for client in replicas.clients:
        assert change(client, "question", "load").status_code == 200


def scores(reply: Any) -> Any:
    assert reply.is_success, reply.text
    return reply.json()["results"][0]["scores"]


def test_streams_of_three_versions_step_fork_rewind_and_tell_their_state(
    deploying: tuple[Replicas, Path],
) -> None:
    replicas, folder = deploying
    streams, first, second = {}, {}, {}
    for version in (1, 2, 3):
        if version > 1:
            deploy(replicas, folder, version)
        streams[version] = replicas.create("question")
        first[version] = scores(replicas.step(streams[version], 1, **STEP))
        second[version] = scores(replicas.step(streams[version], 2, **STEP))
    assert len({str(each) for each in first.values()}) == 3
    for version, stream in streams.items():
        state = replicas.get(stream, "/state").json()["state"]
        third = scores(replicas.step(stream, 3, **STEP))
        body = {"model": f"question@{version}", "state": state, **STEP}
        assert scores(replicas.ask("POST", "/v1/classify", json=body)) == third
        assert scores(replicas.step(stream, 3, **STEP)) == third, "the stored reply"
        (fork,) = replicas.post(stream, "fork").json()["data"]
        assert replicas.post(fork["id"], "rewind", step=3).is_success
        assert replicas.post(stream, "rewind", step=1).is_success
        assert scores(replicas.step(stream, 2, **STEP)) == second[version]
        assert replicas.post(stream, "rewind", step=0).is_success
        assert scores(replicas.step(stream, 1, **STEP)) == first[version]
        assert replicas.get(stream).json()["model"] == "question"


def test_a_stream_that_has_read_nothing_keeps_the_version_that_it_was_created_with(
    deploying: tuple[Replicas, Path],
) -> None:
    replicas, folder = deploying
    stream, other = replicas.create("question"), replicas.create("question")
    expected = scores(replicas.step(other, 1, **STEP))
    deploy(replicas, folder, 2)
    assert scores(replicas.step(stream, 1, **STEP)) == expected
    new = replicas.create("question")
    assert scores(replicas.step(new, 1, **STEP)) != expected


def test_a_stream_of_an_unloaded_version_never_continues_with_other_weights(
    deploying: tuple[Replicas, Path],
) -> None:
    replicas, folder = deploying
    begun, empty = replicas.create("question"), replicas.create("question")
    assert replicas.step(begun, 1, **STEP).is_success
    deploy(replicas, folder, 2)
    for client, application in zip(replicas.clients, replicas.applications, strict=True):
        assert change(client, "question@1", "unload").is_success
        repository = application.lifecycle.repository
        until(lambda repository=repository: len(repository.engines) == 1)  # type: ignore[misc]
    for stream, number in ((begun, 2), (empty, 1)):
        for _ in replicas.clients:
            reply = replicas.step(stream, number, **STEP)
            assert reply.json()["error"]["code"] == "state_wrong_model"
    assert replicas.step(begun, 1, **STEP).is_success, "the stored reply"
    assert replicas.delete(begun).is_success
