"""The bundled models as ONNX files, and a server of them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import sruserve
from sruserve.cli import app
from sruserve.export.onnx.export import export_onnx
from tests.server.processes import serving

ROOT = Path(__file__).parents[2]
DEMO = Path(sruserve.__file__).parent / "demo"
MODELS = ("shakespeare", "question-type")
KEYS = "a" * 64

ExportState = Callable[[str, str], Path]


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a folder of graphs for each bundled model."""
    folder = tmp_path_factory.mktemp("exported")
    for name in MODELS:
        (folder / name).mkdir()
        export_onnx(DEMO / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def client() -> Iterator[httpx.Client]:
    folders = [DEMO / name for name in MODELS]
    with serving(*folders, state_keys=KEYS) as (client, _):
        yield client


@pytest.fixture
def export_state(tmp_path: Path) -> ExportState:
    """`export_state(model, token)`: the file that `sruserve export state` writes."""

    def export(model: str, token: str) -> Path:
        command, keys = ["export", "state", str(DEMO / model)], {"SRUSERVE_STATE_KEYS": KEYS}
        done = CliRunner().invoke(app, command, input=f"{token}\n", env=keys)
        assert done.exit_code == 0, done.stderr
        (tmp_path / "state.json").write_text(done.stdout)
        return tmp_path / "state.json"

    return export


def completed(client: httpx.Client, prompt: str, **options: Any) -> dict[str, Any]:
    """The server's last choice."""
    body = {"model": "shakespeare", "prompt": prompt, **options}
    reply = client.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    choice: dict[str, Any] = reply.json()["choices"][-1]
    return choice


def classified(client: httpx.Client, chunk: str, **options: Any) -> dict[str, Any]:
    """The server's one result."""
    body = {"model": "question-type", "input": chunk, **options}
    reply = client.post("/v1/classify", content=json.dumps(body))
    assert reply.status_code == 200, reply.text
    result: dict[str, Any] = reply.json()["results"][0]
    return result


def held_state(client: httpx.Client, model: str, **step: Any) -> tuple[str, str]:
    """A stream that the server holds, after its first step, and its state."""
    stream = client.post("/v1/streams", json={"model": model}).json()["id"]
    reply = client.post(f"/v1/streams/{stream}/steps", json={"step": 1, **step})
    assert reply.status_code == 200, reply.text
    return stream, client.get(f"/v1/streams/{stream}/state").json()["state"]


def interrupted(client: httpx.Client, seed: int) -> str:
    """A state of the second of two choices, whose last two characters the server holds back.

    A stop string may begin with them.
    """
    options = {"max_tokens": 100, "seed": seed, "n": 2}
    text = completed(client, "JULIET:", **options)["text"]
    stopped = completed(client, "JULIET:", stop=f"{text[-2:]}~", return_state=True, **options)
    assert stopped["text"] == text[:-2]
    token: str = stopped["state"]
    return token
