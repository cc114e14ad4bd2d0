"""Commands and programs in the documents are run, against the server that `make serve` starts."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import sruserve
from bench.serve.processes import free_port
from sruserve.model.cells import FAMILIES

BASH = ("bash", "-euo", "pipefail")
ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
OTHERS = [
    program
    for path in sorted((ROOT / "docs").glob("*.md"))
    if path.name != "architecture.md"  # it shows excerpts, for developers
    for program in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)
]
BLOCKS = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
FAMILY_PAGE = (ROOT / "docs/families.md").read_text()
START = (ROOT / "docs/getting-started.md").read_text()
FIRST_COMMANDS = re.findall(r"```bash\n(.*?)```", START, re.DOTALL)[:2]  # of the bundled models


@pytest.fixture(scope="module")
def ports() -> Iterator[tuple[int, int]]:
    """Of HTTP and of gRPC."""
    for program in ("curl", "make"):
        if shutil.which(program) is None:
            pytest.skip(f"needs the system package {program} (apt-get install {program})")
    number, grpc = free_port(), free_port()
    server = subprocess.Popen(
        ["make", "serve"],
        cwd=ROOT,
        env={**os.environ, "SRUSERVE_PORT": str(number), "SRUSERVE_GRPC_PORT": str(grpc)},
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 300
        while True:
            assert server.poll() is None, "make serve ended"
            assert time.monotonic() < deadline, "make serve is not ready"
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{number}/readyz", timeout=5)
                break
            except OSError:
                time.sleep(0.1)
        yield number, grpc
    finally:
        os.killpg(server.pid, signal.SIGINT)
        server.wait(120)


def run(text: str, ports: tuple[int, int], *program: str) -> str:
    """What a program writes that is given a text of the documents."""
    assert "127.0.0.1:800" in text
    for written, port in zip(("127.0.0.1:8000", "127.0.0.1:8001"), ports, strict=True):
        text = text.replace(written, f"127.0.0.1:{port}")
    result = subprocess.run(
        [*program, "-c", text],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split("\n")[0][:60])
def test_a_command_of_the_readme_gets_an_answer(command: str, ports: tuple[int, int]) -> None:
    output = run(command, ports, *BASH)
    assert '"error"' not in output
    assert any(part in output for part in ('"results"', '"choices"', '"score"'))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.split("\n")[0][:60])
def test_a_client_of_the_readme_takes_five_lines_at_most(
    program: str, ports: tuple[int, int]
) -> None:
    assert program.count("\n") <= 5
    output = run(program, ports, sys.executable)
    assert "openai" in program or "number" in output
    assert len(output) > 8
    assert "error" not in output


@pytest.mark.parametrize("program", OTHERS, ids=lambda program: program.split("\n")[0][:60])
def test_a_program_of_the_documents_runs(program: str, ports: tuple[int, int]) -> None:
    output = run(program, ports, sys.executable)
    if "completions" in program:  # 200 characters, the 200 that follow, and the line's end
        assert len(output) == 401, output
    else:
        assert "number" in output
        assert "error" not in output


def test_every_family_is_in_the_table_with_a_test_that_is_there() -> None:
    rows = re.findall(r"^\| .*tests/.*\|$", FAMILY_PAGE, re.MULTILINE)
    linked = re.findall(r"\]\(\.\./(tests/[^)]*)\)", FAMILY_PAGE)
    assert families_in(rows) >= set(FAMILIES)
    assert len(linked) > len(rows)
    assert [path for path in linked if not (ROOT / path).is_file()] == []


def test_the_readme_names_every_family() -> None:
    table = README.split("\n## Supported models\n")[1].split("\n## ")[0]
    assert families_in(re.findall(r"^\| .*\|$", table, re.MULTILINE)) >= set(FAMILIES)


def families_in(rows: list[str]) -> set[str]:
    """The words of a table's first column, written as the families' names are."""
    words = re.findall(r"[A-Za-z]+(?:\+\+)?", " ".join(row.split("|")[1] for row in rows))
    return {word.lower().replace("++", "pp") for word in words}


def test_the_readme_starts_with_the_command_that_serves() -> None:
    assert BLOCKS[0] == "make serve\n"


def test_the_table_of_contents_lists_every_section() -> None:
    contents = re.search(r"\*\*Contents:\*\*(.*?)\n\n", README, re.DOTALL)
    assert contents is not None
    links = re.findall(r"\[([^\]]*)\]\(#([^)]*)\)", contents[1])
    assert [title for title, _ in links] == re.findall(r"^## (.*)$", README, re.MULTILINE)
    assert [anchor for _, anchor in links] == [
        title.lower().replace(" ", "-") for title, _ in links
    ]


def test_the_example_of_an_own_model_makes_the_folder_that_is_served(tmp_path: Path) -> None:
    (example,) = (block for block in BLOCKS if "sruserve.save" in block)
    *lines, serve = example.splitlines()
    assert serve == "sruserve serve films"
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, arguments in ("python3", ""), ("sruserve", "-m sruserve "):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        (programs / name).chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*BASH, "-c", "\n".join(lines)],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "lstm" in done.stdout
    with sruserve.load(tmp_path / "films") as model:
        answer = model.classify("A great film", more=True)
    assert answer.label in ("bad", "good")
    assert answer.state is not None


@pytest.mark.parametrize(
    ("page", "command"),
    [(README, COMMANDS[0]), (START, FIRST_COMMANDS[0])],
    ids=["readme", "start"],
)
def test_a_page_shows_the_reply_to_its_first_command(
    page: str, command: str, ports: tuple[int, int]
) -> None:
    text = re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0]
    shown, reply = json.loads(text), json.loads(run(command, ports, *BASH))
    for remaining in shown, reply:
        del remaining["id"]
    for result in shown["results"]:
        for field in "score", "scores":
            result[field] = pytest.approx(result[field], abs=1e-6)
    assert reply == shown


def test_the_readme_shows_the_reply_to_its_command_that_translates(ports: tuple[int, int]) -> None:
    (command,) = (command for command in COMMANDS if "/v1/translate" in command)
    shown = json.loads(README.partition(command)[2].partition("```json\n")[2].partition("```")[0])
    assert json.loads(run(command, ports, *BASH)) | {"id": shown["id"]} == shown


@pytest.mark.parametrize("commands", [COMMANDS[:2], FIRST_COMMANDS], ids=["readme", "start"])
def test_a_question_in_chunks_gets_the_label_of_the_whole(
    commands: list[str], ports: tuple[int, int]
) -> None:
    replies = [json.loads(run(command, ports, *BASH)) for command in commands]
    page = README if commands == COMMANDS[:2] else START
    shown = re.findall(r'`"usage": ({.*?})`', page.partition(commands[1])[2])
    assert [json.loads(usage) for usage in shown[:1]] == [replies[1]["usage"]]
    whole, chunks = (reply["results"][0] for reply in replies)
    assert whole["label"] == "number"
    assert (chunks["label"], chunks["scores"]) == (whole["label"], whole["scores"])
