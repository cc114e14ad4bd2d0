"""KServe's runtime starts the real server on a folder as KServe mounts it, and v2 works there."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
import yaml

from bench.serve.processes import Server, answers, free_port
from sruserve.model.bundled import BUNDLED
from sruserve.server.ending import KILL_SECONDS
from sruserve.server.settings import Settings
from tests.deploy.kubernetes import objects, validate, validate_pod

KSERVE = Path(__file__).parents[2] / "deploy/kserve"
(RUNTIME,) = objects((KSERVE / "runtime.yaml").read_text())
(CONTAINER,) = RUNTIME["spec"]["containers"]
MOUNT = "/mnt/models"  # where KServe's storage initializer puts models
QUESTION = "How far is it from Denver to Aspen ?"


class Ports(NamedTuple):
    http: int
    grpc: int


@pytest.fixture(scope="module")
def ports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ports]:
    """The server of the runtime, with its mount, ports and address replaced."""
    mount = tmp_path_factory.mktemp("mnt") / "models"
    shutil.copytree(BUNDLED, mount)
    grpc_port = free_port()
    secret = {"valueFrom": {"secretKeyRef": {"name": "sruserve-state-keys", "key": "keys"}}}
    environment = {}
    for variable in CONTAINER["env"]:
        value = "b" * 64 if secret.items() <= variable.items() else variable["value"]
        environment[variable["name"]] = value.replace(MOUNT, str(mount))
    assert environment["SRUSERVE_GRPC_PORT"] == "9000"
    environment["SRUSERVE_GRPC_PORT"] = str(grpc_port)

    def command(port: int) -> list[str]:
        words = [*CONTAINER["command"], *CONTAINER["args"]]
        program = str(Path(sys.executable).with_name(words[0]))
        assert words.count("0.0.0.0") == words.count("8080") == 1
        own = {"0.0.0.0": "127.0.0.1", "8080": str(port)}
        return [program, *(own.get(word, word) for word in words[1:])]

    def ready(port: int) -> bool:
        return answers(port, "GET", CONTAINER["startupProbe"]["httpGet"]["path"])

    with Server("runtime", command, ready, environment) as server:
        yield Ports(server.port, grpc_port)


@pytest.fixture(scope="module", params=["http", "grpc"])
def client(request: pytest.FixtureRequest, ports: Ports) -> Iterator[Any]:
    library = {"http": http_client, "grpc": grpc_client}[request.param]
    port = ports.http if request.param == "http" else ports.grpc
    with library.InferenceServerClient(f"127.0.0.1:{port}") as connected:
        yield connected


def infer_input(client: Any) -> Any:
    library = http_client if isinstance(client, http_client.InferenceServerClient) else grpc_client
    text = library.InferInput("text", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[QUESTION.encode()]], object))
    return text


def test_the_server_and_its_models_are_healthy(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("question-type")


def test_a_model_describes_itself(client: Any) -> None:
    described = client.get_model_metadata("question-type")
    name = described["name"] if isinstance(described, dict) else described.name
    assert name == "question-type"


def test_a_model_answers(client: Any) -> None:
    result = client.infer("question-type", [infer_input(client)])
    assert result.as_numpy("label").tolist() == [[b"number"]]


def test_both_protocols_are_those_that_the_runtime_declares(ports: Ports) -> None:
    assert RUNTIME["spec"]["protocolVersions"] == ["v2", "grpc-v2"]
    with grpc.insecure_channel(f"127.0.0.1:{ports.grpc}") as channel:
        grpc.channel_ready_future(channel).result(timeout=60)


@pytest.mark.parametrize("path", sorted(KSERVE.glob("*.yaml")), ids=lambda path: path.name)
def test_kserve_accepts_every_object(path: Path) -> None:
    for each in objects(path.read_text()):
        validate(each)


def test_kubernetes_accepts_the_pod_of_the_runtime() -> None:
    validate_pod(RUNTIME["spec"]["containers"], RUNTIME["spec"]["volumes"])
    variables = {variable["name"] for variable in CONTAINER["env"]}
    names = {name.removeprefix("SRUSERVE_").lower() for name in variables}
    assert names <= set(Settings.model_fields)


def test_the_example_asks_for_this_runtime_and_time_to_drain() -> None:
    example = yaml.safe_load((KSERVE / "inferenceservice.yaml").read_text())
    predictor = example["spec"]["predictor"]
    assert predictor["model"]["runtime"] == RUNTIME["metadata"]["name"]
    formats = [each["name"] for each in RUNTIME["spec"]["supportedModelFormats"]]
    assert predictor["model"]["modelFormat"]["name"] in formats
    drain_seconds = Settings.model_fields["drain_seconds"].default
    assert predictor["terminationGracePeriodSeconds"] > drain_seconds + KILL_SECONDS
    assert not example["metadata"]["name"].startswith("sruserve")
