"""Every command in the README is run, against the server that `make serve` starts."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sruserve.model.cells import FAMILIES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    for program in ("curl", "make"):
        if shutil.which(program) is None:
            pytest.skip(f"needs the system package {program} (apt-get install {program})")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = int(free.getsockname()[1])
    server = subprocess.Popen(
        ["make", "serve"],
        cwd=ROOT,
        env={**os.environ, "SRUSERVE_PORT": str(number)},
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
        yield number
    finally:
        os.killpg(server.pid, signal.SIGINT)
        server.wait(30)


def run(command: str, port: int) -> str:
    assert "http://127.0.0.1:8000" in command
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command.replace("127.0.0.1:8000", f"127.0.0.1:{port}")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split("\n")[0][:60])
def test_a_command_of_the_readme_gets_an_answer(command: str, port: int) -> None:
    output = run(command, port)
    assert '"error"' not in output
    assert '"results"' in output or '"choices"' in output


def test_every_family_is_in_the_table_with_a_test_that_is_there() -> None:
    rows = re.findall(r"^\| .*tests/.*\|$", README, re.MULTILINE)
    words = re.findall(r"[A-Za-z]+(?:\+\+)?", " ".join(row.split("|")[1] for row in rows))
    known = {word.lower().replace("++", "pp") for word in words}
    assert known >= set(FAMILIES)
    linked = re.findall(r"\]\((tests/[^)]*)\)", README)
    assert len(linked) > len(rows)
    assert [path for path in linked if not (ROOT / path).is_file()] == []


def test_the_readme_starts_with_the_two_commands() -> None:
    first = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)[0]
    assert [line.split()[:2] for line in first.splitlines()] == [
        ["make", "serve"],
        ["make", "test"],
    ]


def test_a_question_in_chunks_gets_the_label_of_the_whole(port: int) -> None:
    whole, chunks = (json.loads(run(command, port))["results"][0] for command in COMMANDS[:2])
    assert whole["label"] == "number"
    assert (chunks["label"], chunks["scores"]) == (whole["label"], whole["scores"])


def test_links_in_the_documents_lead_somewhere() -> None:
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{path.name} links to {target}"
