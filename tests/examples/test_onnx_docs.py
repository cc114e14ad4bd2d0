"""The commands of docs/onnx.md and the README run, and what the page says is so."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import onnx
import pytest

from docs.graphs.draw import FOLDER, KINDS, drawn_operators, small_graph
from sruserve.export.onnx.export import export_onnx
from sruserve.export.onnx.metadata import PREFIX
from sruserve.export.quantize.quantize import quantize
from tests.examples.conftest import DEMO, KEYS, MODELS, ROOT, ExportState, completed, held_state
from tests.preloaded import command
from tests.server.processes import serving

PAGE = (ROOT / "docs/onnx.md").read_text()
EXPORTS, PROGRAMS, WEB = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
(PYTHON,) = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
(HAND_OVER,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the repository's own, and with the commands of an environment."""
    folder = tmp_path_factory.mktemp("clone")
    for name in "sruserve", "examples":
        (folder / name).symlink_to(ROOT / name)
    programs = folder / "bin"
    programs.mkdir()
    (programs / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "python3").chmod(0o755)
    return folder


def run(commands: str, clone: Path, *program: str) -> str:
    """What commands of a page write."""
    preloader = command(clone / "bin/sruserve", "-m", "sruserve")
    environment = {
        "PATH": f"{clone / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SRUSERVE_STATE_KEYS": KEYS,
    }
    done = subprocess.run(
        [*(program or ("bash", "-euo", "pipefail")), "-c", commands],
        cwd=clone, env=environment, pass_fds=[preloader],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def portable(clone: Path) -> Path:
    """The clone, after the page's first commands."""
    run(EXPORTS, clone)
    return clone


def test_the_program_of_the_page_writes_the_likeliest_text(
    client: httpx.Client, portable: Path
) -> None:
    expected = completed(client, "ROMEO:", max_tokens=95, temperature=0)["text"]
    assert run(PYTHON, portable, sys.executable) == f"ROMEO:{expected}\n"


def test_the_programs_of_the_page_sample_and_classify(client: httpx.Client, portable: Path) -> None:
    text = completed(client, "ROMEO:", max_tokens=200, seed=7)["text"]
    output = run(PROGRAMS, portable)
    assert output.startswith(text)
    assert [line.split()[0] for line in output[len(text) :].splitlines()] == ["number"] * 3


def test_the_commands_of_the_page_continue_the_text_of_the_server(
    client: httpx.Client, portable: Path
) -> None:
    text = completed(client, "ROMEO:", max_tokens=200, seed=7)["text"]
    commands = HAND_OVER.replace("http://127.0.0.1:8000", str(client.base_url).rstrip("/"))
    assert run(commands, portable) == text[100:]


def test_a_state_token_continues_where_onnx_runtime_computes(
    client: httpx.Client, exported: Path
) -> None:
    begun = completed(client, "ROMEO:", max_tokens=100, seed=7, return_state=True)
    continued = completed(client, "", max_tokens=100, state=begun["state"])["text"]
    with serving(exported / "shakespeare", state_keys=KEYS) as (other, _):
        moved = completed(other, "", max_tokens=50, state=begun["state"], return_state=True)
    back = completed(client, "", max_tokens=50, state=moved["state"])
    assert moved["text"] + back["text"] == continued


def test_the_commands_of_the_readme_write_the_text_of_the_server(
    client: httpx.Client, clone: Path
) -> None:
    (block,) = re.findall(r"```sh\n([^`]*export onnx.*?)```", README, re.DOTALL)
    install, *commands = block.splitlines()
    assert install == "pip install '.[onnx]'"
    text = completed(client, "ROMEO:", max_tokens=200, seed=7)["text"]
    assert run("\n".join(commands), clone).endswith(text)


def test_the_page_for_browsers_gets_its_files_where_it_looks_for_them() -> None:
    cd, install, *exports, host = WEB.splitlines()
    web = ROOT / cd.removeprefix("cd ")
    assert install.startswith("npm ci ")
    assert host.startswith("python3 -m http.server ")
    for export, name in zip(exports, MODELS, strict=True):
        *command, source, out = export.split()
        assert command == ["sruserve", "export", "onnx"]
        assert (web / source).resolve() == DEMO.resolve() / name
        assert out == f"models/{name}"
        assert f'load("{name}/' in (web / "page.js").read_text()
    readme = (ROOT / "examples/onnx/README.md").read_text()
    for command in install.split("#")[0].strip(), *exports, host:
        assert f"$ {command}\n" in readme


def test_the_page_lists_the_properties_of_files(exported: Path, tmp_path: Path) -> None:
    quantize(DEMO / "question-type", tmp_path / "small", "int8")
    files = export_onnx(tmp_path / "small", tmp_path / "int8.onnx", ["step"])
    files += [file for name in MODELS for file in (exported / name).iterdir()]
    names = set()
    for file in files:
        names |= {entry.key for entry in onnx.load(file).metadata_props}
    assert set(re.findall(rf"^\| `({re.escape(PREFIX)}\w+)`", PAGE, re.MULTILINE)) == names


def test_the_page_lists_the_fields_of_a_state(
    client: httpx.Client, export_state: ExportState
) -> None:
    _, token = held_state(client, "question-type", input="Who ", more=True)
    section = PAGE.split("## Continue")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    fields = {field for row in rows for field in re.findall(r"`(\w+)`", row)}
    assert fields == set(json.loads(export_state("question-type", token).read_text()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_shows_the_operators_of_its_graph(kind: str) -> None:
    texts = re.findall(r"<text [^>]*>(.*?)</text>", (FOLDER / f"{kind}.svg").read_text())
    known = set(drawn_operators(small_graph(kind)))
    shown = [text for text in texts if text in known]
    assert sorted(shown) == sorted(drawn_operators(small_graph(kind)))
    assert not [
        text for text in texts if re.fullmatch("[A-Z][A-Za-z]+", text) and text not in known
    ]
