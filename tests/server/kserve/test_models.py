"""Metadata, configuration, statistics, probes and the repository, by Triton's own client."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import tritonclient.http as triton
from google.protobuf.json_format import MessageToDict, ParseDict
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import InferenceServerException

from sruserve import __version__
from sruserve.server.app import Application
from tests.server.conftest import LABELS, Serve
from tests.server.http.json_requests import connect
from tests.server.kserve.support import connected, refused, tensor, texts
from tests.server.observing import until


@pytest.fixture
def connection(client: httpx.Client) -> Iterator[triton.InferenceServerClient]:
    with connected(client) as connection:
        yield connection


def test_the_server_tells_what_it_can(connection: triton.InferenceServerClient) -> None:
    metadata = connection.get_server_metadata()
    assert (metadata["name"], metadata["version"]) == ("sruserve", __version__)
    assert {"sequence", "sequence(string_id)", "binary_tensor_data", "statistics"} <= set(
        metadata["extensions"]
    )


def test_probes(connection: triton.InferenceServerClient) -> None:
    assert connection.is_server_live()
    assert connection.is_server_ready()
    assert connection.is_model_ready("question")
    assert connection.is_model_ready("question", "1")
    assert not connection.is_model_ready("question", "2")
    assert not connection.is_model_ready("nobody")


def test_a_server_that_stops_is_alive_but_not_ready(
    serve: Serve,
) -> None:
    with serve("question") as (client, application), connected(client) as connection:
        application.lifecycle.draining = True
        for served in application.lifecycle.catalogue.values():
            served.engine.drain(0)
        assert connection.is_server_live()
        assert not connection.is_server_ready()
        assert not connection.is_model_ready("question")
        with pytest.raises(InferenceServerException) as error:
            connection.infer("question", [texts("who")])
        assert refused(error.value, 503) == (
            "Server is stopping, scheduler for model has stopped accepting new inference requests"
        )
        assert connection.get_model_repository_index()[0]["state"] == "UNAVAILABLE"


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"max_queue_requests": 1}, {}, "Exceeds maximum queue size"),
        ({}, {"timeout": 1}, "Request timeout expired"),  # a microsecond
    ],
)
def test_a_request_that_cannot_wait_is_refused_in_triton_s_words(
    serve: Serve, settings: dict[str, int], options: dict[str, int], message: str
) -> None:
    with serve("characters", **settings) as (client, application):
        engine = application.lifecycle.catalogue.with_states("characters").engine
        step, begun, answered = engine._runner.step, threading.Event(), threading.Event()

        def step_when_another_waits(*arguments: Any) -> Any:
            if not begun.is_set():
                begun.set()
                until(lambda: engine.waiting > 1 or answered.is_set())
                time.sleep(0.002)  # the shortest timeout is a millisecond
            return step(*arguments)

        engine._runner.step = step_when_another_waits  # type: ignore[assignment]
        with connect(client, "/v1/completions", {"prompt": "a"}), connected(client) as connection:
            assert begun.wait(60)  # otherwise one step might answer both
            with pytest.raises(InferenceServerException) as error:
                connection.infer("characters", [texts("a", name="text_input")], **options)
            answered.set()
        assert refused(error.value, 503) == message


@pytest.mark.parametrize("model", ["question", "whole", "sensor", "characters", "ids"])
def test_shapes_have_a_batch_dimension_where_the_configuration_has_batches(
    connection: triton.InferenceServerClient, application: Application, model: str
) -> None:
    metadata, config = connection.get_model_metadata(model), connection.get_model_config(model)
    assert metadata["name"] == config["name"] == model
    assert metadata["versions"] == ["1"]
    batch = [-1] if config["max_batch_size"] else []
    assert bool(batch) == (model not in ("sensor", "ids"))
    for mine, theirs in (
        (metadata["inputs"], config["input"]),
        (metadata["outputs"], config["output"]),
    ):
        assert [each["name"] for each in mine] == [each["name"] for each in theirs]
        assert [each["shape"] for each in mine] == [[*batch, *each["dims"]] for each in theirs]
    streams = application.lifecycle.catalogue.with_states(model).model.network.supports_streaming
    assert ("sequence_batching" in config) == streams


def test_metadata_names_the_tensors(connection: triton.InferenceServerClient) -> None:
    metadata = connection.get_model_metadata("question", "1")
    assert metadata["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1, 1]}]
    assert metadata["outputs"][2] == {
        "name": "scores", "datatype": "FP32", "shape": [-1, len(LABELS)],
    }  # fmt: skip
    (features,) = connection.get_model_metadata("sensor")["inputs"]
    assert features == {"name": "features", "datatype": "FP32", "shape": [-1, 8]}


@pytest.mark.parametrize("model", ["tagger", "motion", "encoder", "reader", "pairs"])
def test_configurations_are_triton_s_messages(tasks: httpx.Client, model: str) -> None:
    config = tasks.get(f"/v2/models/{model}/config").json()
    parsed = MessageToDict(ParseDict(config, ModelConfig()), preserving_proto_field_name=True)
    assert parsed["name"] == model
    assert parsed["input"] == [
        {**each, "dims": [str(size) for size in each["dims"]]} for each in config["input"]
    ]
    assert parsed["parameters"]["digest"] == config["parameters"]["digest"]


def test_statistics_count_each_request_once(connection: triton.InferenceServerClient) -> None:
    def read() -> dict[str, Any]:
        (stats,) = connection.get_inference_statistics("sensor")["model_stats"]
        assert (stats["name"], stats["version"]) == ("sensor", "1")
        return dict(stats)

    def count(before: dict[str, Any], after: dict[str, Any], part: str) -> tuple[int, int]:
        one, other = (each["inference_stats"][part] for each in (before, after))
        return other["count"] - one["count"], other["ns"] - one["ns"]

    before = read()
    for _ in range(3):
        connection.infer("sensor", [tensor("features", [[0.5] * 8] * 4)])
    with pytest.raises(InferenceServerException):
        connection.infer("sensor", [tensor("features", [[0.5] * 7])])
    after = read()
    assert after["inference_count"] - before["inference_count"] == 3
    assert after["execution_count"] - before["execution_count"] == 3
    assert after["last_inference"] > before["last_inference"]
    for part in ("success", "compute_input", "compute_infer", "compute_output", "queue"):
        times, nanoseconds = count(before, after, part)
        assert times == 3
        assert nanoseconds > 0
    assert count(before, after, "fail")[0] == 1
    sizes = {each["batch_size"]: each["compute_infer"]["count"] for each in after["batch_stats"]}
    assert sum(sizes.values()) == after["execution_count"]
    names = [each["name"] for each in connection.get_inference_statistics()["model_stats"]]
    assert {"question", "sensor"} <= set(names)
    with pytest.raises(InferenceServerException, match="unknown model"):
        connection.get_inference_statistics("nobody")


def test_the_index_lists_the_models(connection: triton.InferenceServerClient) -> None:
    index = connection.get_model_repository_index()
    assert {"name": "question", "version": "1", "state": "READY", "reason": ""} in index


def test_what_is_not_offered_says_so(connection: triton.InferenceServerClient) -> None:
    for call in (
        connection.get_log_settings,
        lambda: connection.update_log_settings({"log_info": True}),
        connection.get_trace_settings,
        lambda: connection.update_trace_settings("question", {}),
        connection.get_system_shared_memory_status,
        lambda: connection.register_system_shared_memory("a", "/a", 8),
        connection.get_cuda_shared_memory_status,
        connection.unregister_cuda_shared_memory,
        lambda: connection.load_model("question", files={"file:1/model": b"weights"}),
    ):
        with pytest.raises(InferenceServerException) as error:
            call()
        assert refused(error.value, 501)
