"""The program and the commands of docs/getting-started.md, from training to an answer."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from sruserve.cli import app
from tests.server.processes import serving

PAGE = (Path(__file__).parents[1] / "docs/getting-started.md").read_text()
(PROGRAM,) = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
_, TRAIN, VERIFY, SERVE, CHECK = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
ASK = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)[-1]
REPLY = json.loads(re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)[-1])
ADDRESS = "http://127.0.0.1:9000"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which the reader works, with the model `intent` and the case."""
    assert TRAIN.splitlines()[-1] == "python3 intent.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder := tmp_path_factory.mktemp("clone"))
        with torch.random.fork_rng():
            exec(compile(PROGRAM, "intent.py", "exec"), {})
        (case,) = re.findall(r"^cat > case.json <<'END'\n(.*?)^END\n", VERIFY, re.M | re.S)
        Path("case.json").write_text(case)
        yield folder


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """The address of a server of the model."""
    first, *command = shlex.split(SERVE)
    assert first == "SRUSERVE_GRPC_PORT=off"
    assert command == ["sruserve", "serve", "intent", "--port", ADDRESS[-4:]]
    with serving(folder / "intent") as (client, _):
        yield str(client.base_url).rstrip("/")


def run(command: str) -> str:
    """What a command of sruserve prints."""
    program, *arguments = shlex.split(command, comments=True)
    assert program == "sruserve"
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_texts_of_the_case_get_the_labels_that_the_reader_expects(folder: Path) -> None:
    inspect, verify = (line for line in VERIFY.splitlines() if line.startswith("sruserve "))
    assert "light, music, heating" in run(inspect)
    output = run(verify)
    assert "agrees" in output
    assert "checked: tokenizer" in output


def test_the_model_that_the_reader_trained_gives_the_reply_of_the_page(url: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs the system package curl (apt-get install curl)")
    assert ADDRESS in ASK
    command = ["bash", "-euo", "pipefail", "-c", ASK.replace(ADDRESS, url)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    reply = json.loads(done.stdout)
    (result,), (shown,) = reply["results"], REPLY["results"]
    assert (result["label"], result.keys()) == (shown["label"], shown.keys())
    assert result["scores"].keys() == shown["scores"].keys()
    assert result["score"] == pytest.approx(shown["score"], abs=0.1)
    assert (reply.keys(), reply["model"]) == (REPLY.keys(), REPLY["model"])
    assert reply["usage"] == REPLY["usage"]


def test_the_check_of_the_page_passes(url: str) -> None:
    assert ADDRESS in CHECK
    assert re.search(r"^ split +passes", run(CHECK.replace(ADDRESS, url)), re.MULTILINE)
