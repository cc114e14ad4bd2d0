"""A protocol that nobody knew when the server was written, in one file (`line_protocol.py`)."""

import ast
import re
from pathlib import Path

import httpx
import pytest

from tests.server import line_protocol
from tests.server.conftest import TEXT, Serve
from tests.server.line_client import lines
from tests.server.observing import until

MODELS = ("question", "characters")


def classify(client: httpx.Client, text: str) -> str:
    reply = client.post("/v1/classify", json={"input": text, "more": True})
    return str(reply.json()["results"][0]["label"])


def counted(client: httpx.Client, outcome: str) -> float:
    """Lines that ended so."""
    sample = rf'sru_requests_total{{.*outcome="{outcome}",route="lines"}} (.*)'
    return sum(map(float, re.findall(sample, client.get("/metrics").text)))


def test_it_serves_classify_completions_and_held_streams(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lines(serve, monkeypatch, *MODELS) as (client, connected):
        assert connected.ask(f"classify {TEXT} ") == classify(client, f"{TEXT} ")

        first = connected.ask("complete 40 How far")
        body = {"prompt": "How far", "max_tokens": 40, "seed": 7}
        whole = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        assert "".join(ast.literal_eval(line) for line in [first, *connected.rest()]) == whole

        stream = connected.ask("create question")
        parts = ((1, "How"), (2, "far"))
        steps = [connected.ask(f"step {stream} {i} {part} ") for i, part in parts]
        assert steps == [classify(client, "How "), classify(client, "How far ")]
        assert connected.ask(f"step {stream} 2 far ") == steps[1]
        assert connected.ask(f"step {stream} 2 from ") == "! step_reused"
        assert client.get(f"/v1/streams/{stream}").json()["step"] == 2


def test_its_errors_and_outcomes_are_the_servers(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lines(serve, monkeypatch, *MODELS) as (client, connected):
        before = counted(client, "invalid")
        assert connected.ask("classify ") == "! empty_input"
        assert connected.ask("step nothing 1 a") == "! stream_unknown"
        assert connected.ask("sing") == "! invalid_request"
        until(lambda: counted(client, "invalid") == before + 3)


def test_a_client_that_leaves_withdraws_its_job(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lines(serve, monkeypatch, *MODELS) as (client, connected):
        before = counted(client, "cancelled")
        assert connected.ask("complete 4000 How far")
        connected.close()
        until(lambda: counted(client, "cancelled") == before + 1)


def test_it_imports_no_other_protocol() -> None:
    source = Path(line_protocol.__file__).read_text()
    assert not any(f"sruserve.server.{room}" in source for room in ("http", "kserve", "websocket"))
