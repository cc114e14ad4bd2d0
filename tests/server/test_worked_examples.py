"""The programs of docs/worked-examples.md write folders, and the server answers its commands."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests import preloaded
from tests.server.conftest import Serve

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/worked-examples.md").read_text()
PROGRAMS = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = re.findall(r"curl -sS http://127\.0\.0\.1:8000(\S+) -d '(.*?)'\n", PAGE)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which all programs have run; each draws random numbers of its own."""
    folder = tmp_path_factory.mktemp("worked")
    for program in PROGRAMS:
        seeded = f"import random, torch\nrandom.seed(1)\ntorch.manual_seed(1)\n{program}"
        environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = preloaded.run("-c", seeded, environment=environment, folder=folder)
        assert done.returncode == 0, done.stderr
    return folder


def test_each_model_answers_its_command(serve: Serve, trained: Path) -> None:
    assert len(PROGRAMS) == len(COMMANDS) == 4
    replies: dict[str, Any] = {}
    with serve(models=trained, model_folders=()) as (client, _):
        for path, body in COMMANDS:
            reply = client.post(path, json=json.loads(body))
            assert reply.status_code == 200, reply.text
            replies[path] = reply.json()
    assert replies["/v1/classify"]["results"][0]["label"] == "weather"
    (span,) = _merged(replies["/v1/tag"]["results"][0]["tokens"])
    assert span == "42"
    assert replies["/v1/completions"]["choices"][0]["text"].startswith(", or not")
    ahead = replies["/v1/regress"]["results"][0]["ahead"]
    assert [550 < step["load"] < 650 for step in ahead] == [True] * 3


def _merged(tokens: list[dict[str, Any]]) -> list[str]:
    """The runs of characters that are labelled as digits."""
    text = "".join(token["text"] if token["label"] != "O" else " " for token in tokens)
    return text.split()
