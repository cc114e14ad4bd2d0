"""The classification extension: the highest values as texts, made away from the event loop."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sruserve.server.kserve import choosing
from sruserve.server.kserve.choosing import choose_outputs, reply_numbers
from sruserve.server.kserve.datatypes import number_tensor
from sruserve.server.kserve.messages import RequestedOutput, Tensor
from tests.server.conftest import Serve
from tests.server.kserve.conftest import grpc_address

MAX_NUMBERS = 3000  # numbers of one reply
STEPS = 40  # whose outputs are 24 each


@pytest.fixture(scope="module")
def encoder(serve: Serve, task_folders: Any) -> Iterator[tuple[httpx.Client, str]]:
    """A server of an encoder whose replies are short, and its address for gRPC."""
    folder = task_folders / "encoder"
    with serve(model_folders=(folder,), max_body_bytes=8 * MAX_NUMBERS, grpc_port=0) as running:
        client, application = running
        yield client, grpc_address(application)


class Stays:
    """A caller that waits for everything."""

    async def wait(self, done: asyncio.Future[Any]) -> None:
        await done


class Leaves:
    """A caller that leaves before anything is done for it."""

    async def wait(self, done: asyncio.Future[Any]) -> None:
        done.cancel()
        raise ConnectionResetError


def requested(count: int) -> list[RequestedOutput]:
    return [RequestedOutput("outputs", {"classification": count})]


def made(
    values: Any, count: int, labels: tuple[str, ...] = (), caller: Any = None, **bounds: int
) -> tuple[tuple[int, ...], list[bytes]]:
    output = number_tensor("outputs", "FP32", values.shape, values)
    choice = choose_outputs(caller or Stays(), [output], requested(count), labels, **bounds)
    (chosen,) = asyncio.run(choice)
    return chosen.shape, list(chosen.values)


def ask(client: httpx.Client, steps: int, count: int) -> httpx.Response:
    shape, data = [steps, 8], [0.125] * (8 * steps)
    features = {"name": "features", "shape": shape, "datatype": "FP32", "data": data}
    outputs = [{"name": "outputs", "parameters": {"classification": count}}]
    return client.post("/v2/models/encoder/infer", json={"inputs": [features], "outputs": outputs})


def watch_texts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts are made in each turn."""
    sizes: list[int] = []
    make = choosing._texts

    def watched(values: Any, *args: Any) -> list[bytes]:
        sizes.append(len(values))
        return make(values, *args)

    monkeypatch.setattr(choosing, "_texts", watched)
    return sizes


ROWS = st.tuples(st.integers(0, 5), st.integers(0, 5))


@given(arrays.arrays(np.float32, ROWS), st.integers(1, 6), st.booleans(), st.integers(1, 7))
def test_each_row_tells_its_highest_values_in_order(
    values: Any, count: int, named: bool, turn: int
) -> None:
    labels = tuple("abcde")[: values.shape[1]] if named else ()
    expected = []
    for row in values:
        for index in np.argsort(-row, kind="stable")[:count]:
            label = f":{labels[index]}" if labels else ""
            expected.append(f"{row[index]}:{index}{label}".encode())
    for short in (0, 512):  # on threads, and on the event loop
        shape = (len(values), min(count, values.shape[1]))
        bounds = {"loop_values": short, "turn_texts": turn}
        assert made(values, count, labels, **bounds) == (shape, expected)


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_many_texts_are_made_away_from_the_event_loop(
    encoder: tuple[httpx.Client, str], monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    threads: set[str] = set()
    sort = np.argsort

    def watched(*args: Any, **more: Any) -> Any:
        threads.add(threading.current_thread().name)
        return sort(*args, **more)

    monkeypatch.setattr(np, "argsort", watched)
    client, address = encoder
    if transport == "http":
        assert ask(client, STEPS, 1).is_success
    else:
        output = triton_grpc.InferRequestedOutput("outputs", class_count=1)
        features = triton_grpc.InferInput("features", [STEPS, 8], "FP32")
        features.set_data_from_numpy(np.ones((STEPS, 8), np.float32))
        with triton_grpc.InferenceServerClient(address) as connection:
            result = connection.infer("encoder", [features], outputs=[output])
        assert result.as_numpy("outputs").shape == (STEPS, 1)
    assert threads
    assert all(name.startswith("offload") for name in threads)


def test_texts_are_made_in_turns_until_their_client_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = watch_texts(monkeypatch)
    values = np.ones((1000, 24), np.float32)
    made(values, 24)
    assert sum(sizes) == values.size
    assert max(sizes) <= choosing._TURN_TEXTS
    sizes.clear()
    with pytest.raises(ConnectionResetError):
        made(values, 24, caller=Leaves())
    assert not sizes


def test_texts_are_counted_before_they_are_made(
    encoder: tuple[httpx.Client, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = encoder
    sizes = watch_texts(monkeypatch)
    refused = ask(client, STEPS, 24)  # 960 numbers fit, as many texts do not
    assert refused.status_code == 400
    assert "fewer classes" in refused.json()["error"]
    assert not sizes
    assert ask(client, STEPS, 12).is_success


def test_a_reply_counts_the_same_before_its_texts_are_made_and_after() -> None:
    output = number_tensor("outputs", "FP32", (4, 3), np.ones(12))
    plain = Tensor("labels", "BYTES", (2,), [b"a", b"b"])
    for count, numbers in ((2, 48), (9, 72)):
        requested_outputs = [*requested(count), RequestedOutput("labels")]
        chosen = asyncio.run(choose_outputs(Stays(), [output, plain], requested_outputs, ()))
        before = reply_numbers([output, plain], requested_outputs)
        assert before == reply_numbers(chosen, requested_outputs) == numbers + 2


def test_long_texts_count_with_their_bytes() -> None:
    texts = Tensor("text_output", "BYTES", (2, 1), [b"a" * 8000, b"a" * 800])
    assert reply_numbers([texts], ()) == 2 + 1100
    labels = Tensor("labels", "BYTES", (2,), [b"a" * 8, b"a" * 8])
    assert reply_numbers([labels], ()) == 2


def test_only_numbers_have_highest_values(tasks: httpx.Client) -> None:
    text = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["who"]}
    for name in ("labels", "span_labels", "span_continued"):
        outputs = [{"name": name, "parameters": {"classification": 1}}]
        body = {"inputs": [text], "outputs": outputs}
        reply = tasks.post("/v2/models/tagger/infer", json=body)
        assert reply.status_code == 400
        assert f"'classification' of output '{name}'" in reply.json()["error"]
    for name in ("scores", "starts", "span_starts", "span_scores"):
        outputs = [{"name": name, "parameters": {"classification": 1}}]
        reply = tasks.post("/v2/models/tagger/infer", json={"inputs": [text], "outputs": outputs})
        assert reply.is_success
