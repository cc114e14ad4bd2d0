"""The descriptions of models: encoded once, and shared by all who ask for them."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic_core import from_json, to_json

from sruserve.model.heads.regression import Regression
from sruserve.server.http.models import ModelInfo, ModelList
from sruserve.server.http.uvicorn_http import HttpProtocol
from tests.memory import grows_by_less, malloc_bytes
from tests.server.conftest import Serve
from tests.server.http.raw_requests import connect
from tests.server.observing import until
from tests.server.repository.changing_models import change, save_version
from tests.support import save_random_model

_LABELS = tuple(f"{number} ".ljust(240, "l") for number in range(4096))
_LABEL_BYTES = 240 * len(_LABELS)
_PATHS = ("/v1/models", "/v1/models/labels", "/v1/models/labels@1")


@pytest.fixture(scope="module")
def client(serve: Serve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server of a model with a megabyte of labels, and of a regressor."""
    parent = tmp_path_factory.mktemp("described")
    save_random_model(parent / "labels", "classify", labels=_LABELS, vocab_size=50)
    regression = Regression(names=("a", "b"), units=("m", "s"), quantiles=(0.1, 0.5))
    save_random_model(parent / "values", "regress", regression=regression, vocab_size=50)
    with serve(models=parent, model_folders=()) as (client, _):
        yield client


def bytes_encoded(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> int:
    """The bytes of JSON that the server encodes meanwhile."""
    sizes: list[int] = []

    def count(value: object, **options: Any) -> bytes:
        encoded = to_json(value, **options)
        sizes.append(len(encoded))
        return encoded

    with monkeypatch.context() as patch:
        patch.setattr("sruserve.server.json_output.to_json", count)
        work()
    return sum(sizes)


@pytest.mark.parametrize("path", _PATHS)
def test_a_description_is_encoded_once_for_all_clients(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def ask() -> None:
        bodies = {client.get(path).content for _ in range(10)}
        assert len(bodies) == 1
        assert len(bodies.pop()) > _LABEL_BYTES

    ask()
    assert bytes_encoded(monkeypatch, ask) < _LABEL_BYTES // 10


@pytest.mark.parametrize("path", _PATHS)
def test_clients_that_read_nothing_hold_no_description(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    count, paused = 16, set[HttpProtocol]()
    made, pause = HttpProtocol.connection_made, HttpProtocol.pause_writing

    def narrow(protocol: HttpProtocol, transport: Any) -> None:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        made(protocol, transport)

    def see(protocol: HttpProtocol) -> None:
        paused.add(protocol)
        pause(protocol)

    monkeypatch.setattr(HttpProtocol, "connection_made", narrow)
    monkeypatch.setattr(HttpProtocol, "pause_writing", see)
    client.get(path)
    with ExitStack() as connections:

        def ask() -> None:
            paused.clear()
            for _ in range(count):
                request = f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
                connections.enter_context(connect(client, request))
            until(lambda: len(paused) == count)

        assert grows_by_less(count * _LABEL_BYTES // 4, malloc_bytes, ask)


def test_a_description_has_the_fields_of_its_schema(client: httpx.Client) -> None:
    listed = client.get("/v1/models").content
    described = ModelList.model_validate_json(listed, strict=True)
    assert listed == described.model_dump_json().encode()
    by_id = {model.id: model for model in described.data}
    assert by_id["labels"].labels == list(_LABELS)
    assert [output.unit for output in by_id["values"].outputs] == ["m", "s"]
    one = client.get("/v1/models/values").content
    assert one == by_id["values"].model_dump_json().encode()
    alias = ModelInfo.model_validate_json(client.get("/v1/models/labels@1").content)
    assert alias == by_id["labels"].model_copy(update={"id": "labels@1"})


def test_head_has_the_length_of_a_long_description(client: httpx.Client) -> None:
    length = client.head("/v1/models").headers["content-length"]
    assert int(length) == len(client.get("/v1/models").content)


def test_descriptions_are_new_after_each_change_of_the_models(serve: Serve, tmp_path: Path) -> None:
    def listed(client: httpx.Client) -> list[tuple[str, str]]:
        models = from_json(client.get("/v1/models").content)["data"]
        for model in models:
            assert client.get(f"/v1/models/{model['id']}").json() == model
        return [(model["id"], model["version"]) for model in models]

    save_version(tmp_path / "question", 1)
    with serve(models=tmp_path, model_folders=(), model_control=True) as (client, _):
        assert listed(client) == [("question", "1")]
        save_version(tmp_path / "question", 2)
        change(client, "question", "load")
        assert listed(client) == [("question", "2"), ("question@1", "1")]
        (tmp_path / "question" / "split.json").write_text('{"1": 1}')
        change(client, "question", "load")
        assert listed(client) == [("question", "1"), ("question@2", "2")]
        change(client, "question", "unload")
        assert listed(client) == []
        assert client.get("/v1/models/question").status_code == 404
