"""A task that nobody knew when the server was written, in one file (`toy_task.py`).

The server of these tests has it in the place of the task of encoders: one entry of the table of
tasks, and one of the tensors that KServe makes of results.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from sruserve.server.kserve.choosing import ENCODINGS
from sruserve.server.kserve.datatypes import number_tensor
from sruserve.server.kserve.messages import Tensor
from sruserve.server.kserve.signature import Signature, Spec
from sruserve.server.kserve.tasks import TextTask
from sruserve.server.repository.served_model import ServedModel
from sruserve.server.tasks.encode import EncodeTask
from sruserve.server.tasks.table import TABLE, default_tasks
from tests.server import toy_task
from tests.server.conftest import Serve
from tests.server.line_client import Lines, lines
from tests.server.toy_task import NormTask
from tests.server.websocket.sockets import open_socket

TEXT = "How far is it"
ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"


class Norms(TextTask):
    """The norm of each input as a tensor."""

    def _signature(self, served: ServedModel, input_spec: Spec, max_batch_size: int) -> Signature:
        return Signature((input_spec,), (Spec("norm", "FP32", (1,)),), max_batch_size)

    def _outputs(self, descriptions: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        norms = [description["norm"] for description in descriptions]
        return [number_tensor("norm", "FP32", (len(norms), 1), norms)]


@pytest.fixture(scope="module")
def running(serve: Serve, task_folders: Path) -> Iterator[tuple[httpx.Client, Lines]]:
    table = (*(task for task in TABLE if task is not EncodeTask), NormTask)
    settings = {"models": None, "model_folders": (task_folders / "reader",), "table": table}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENCODINGS, "encode", Norms)
        with lines(serve, patch, **settings) as running:
            yield running


def norm_of(client: httpx.Client, text: str) -> float:
    """What the task must return, of the vector that another route returns."""
    reply = client.post("/v1/embeddings", json={"input": text})
    return float(np.linalg.norm(np.float32(reply.json()["data"][0]["embedding"])))


def test_every_protocol_serves_it(running: tuple[httpx.Client, Lines]) -> None:
    client, connected = running
    norm = norm_of(client, TEXT)
    assert norm > 0
    reply = client.post("/v1/norm", json={"input": [TEXT, "who"]}).json()
    assert reply["id"].startswith("norm-")
    assert reply["usage"] == {"steps": 5}
    assert [each["norm"] for each in reply["results"]] == [norm, norm_of(client, "who")]

    assert json.loads(connected.ask(f"norm {TEXT}")) == [{"norm": norm, "state": None}]

    text = {"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": [TEXT]}
    tensors = client.post("/v2/models/reader/infer", json={"inputs": [text]}).json()
    assert tensors["outputs"][0]["name"] == "norm"
    assert tensors["outputs"][0]["data"] == [pytest.approx(norm, rel=1e-6)]


def test_it_runs_step_by_step(running: tuple[httpx.Client, Lines]) -> None:
    client, _ = running
    norm, chunks = norm_of(client, TEXT), ("How far ", "is it ")
    stream = client.post("/v1/streams", json={"model": "reader"}).json()
    assert stream["task"] == "encode"
    path = f"/v1/streams/{stream['id']}/steps"
    for step, chunk in enumerate(chunks, 1):
        body = {"step": step, "input": chunk, "more": True}
        reply = client.post(path, json=body)
    assert reply.json()["results"][0]["norm"] == norm
    assert client.post(path, json=body).content == reply.content  # computed once
    unknown = client.post(path, json={"step": 3, "input": "a", "dimensions": 3})
    assert unknown.json()["error"]["param"] == "dimensions"

    with open_socket(client) as socket:
        for chunk in chunks:
            socket.send(json.dumps({"input": chunk}))
            result = json.loads(socket.recv())
        assert result["norm"] == norm


def test_the_documentation_and_the_metrics_show_it(running: tuple[httpx.Client, Lines]) -> None:
    client, _ = running
    client.post("/v1/norm", json={"input": TEXT})
    document = client.get("/openapi.json").json()
    operation = document["paths"]["/v1/norm"]["post"]
    assert operation["summary"] == "Measure inputs"
    assert operation["description"].startswith("Return the Euclidean norm")
    body = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    assert "features" in document["components"]["schemas"][body.split("/")[-1]]["properties"]
    assert "/v1/encode" not in document["paths"]
    sample = r'sru_requests_total{model="reader",outcome="ok",route="/v1/norm"} (.*)'
    (count,) = re.findall(sample, client.get("/metrics").text)
    assert float(count) >= 1


def test_the_architecture_shows_its_code() -> None:
    section = ARCHITECTURE.read_text().split("\n### A new task\n")[1]
    code = section.split("```python\n")[1].split("```")[0]
    source = Path(toy_task.__file__).read_text()
    assert "\n".join(code.split()) in "\n".join(source.split())


def test_a_model_has_one_default_task() -> None:
    class OtherTask(NormTask):
        is_default = False

    with pytest.raises(AssertionError, match="both the default for 'encode'"):
        default_tasks((EncodeTask, NormTask))
    assert default_tasks((EncodeTask, OtherTask))["encode"] is EncodeTask


def test_it_imports_no_protocol() -> None:
    source = Path(toy_task.__file__).read_text()
    assert not any(f"sruserve.server.{room}" in source for room in ("http", "kserve", "websocket"))
