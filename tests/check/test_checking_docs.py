"""The commands of docs/checking.md run, and its tables are the output."""

import os
import re
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from sruserve.check.examine import CHECKS
from sruserve.cli import app
from tests.check.fakes import TensorServer, running

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/checking.md").read_text()
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
TABLES = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)


def run(block: str, url: str, folder: Path) -> str:
    """The standard output of the commands of a block."""
    program = folder / "sruserve"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m sruserve "$@"\n')
    program.chmod(0o755)
    environment = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.replace("http://127.0.0.1:8000", url)],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(output: str) -> list[str]:
    """The lines of a table; how many requests there were depends on those that were put off."""
    lines = [line.rstrip() for line in output.splitlines() if line.strip()]
    return [re.sub(r"\d+ requests", "N requests", line) for line in lines]


def test_the_first_command_prints_the_table_that_the_page_shows(url: str, tmp_path: Path) -> None:
    assert rows(run(BLOCKS[0], url, tmp_path)) == rows(TABLES[0])


def test_the_other_commands_pass(url: str, tmp_path: Path) -> None:
    assert len(BLOCKS) == 2
    output = run(BLOCKS[1], url, tmp_path)
    assert '"exit_code": 0' in output
    assert output.count("company   passes") == 2


def test_a_server_that_pads_gets_the_table_that_the_page_shows() -> None:
    with running(TensorServer("pads")) as server:
        done = CliRunner().invoke(app, ["check", server.url])
    assert rows(done.stdout) == rows(TABLES[1])


def test_the_page_names_every_check_with_its_question_and_every_option() -> None:
    for each in CHECKS:
        assert f"| `{each.name}` | {each.question} |" in PAGE
    help_text = CliRunner().invoke(app, ["check", "--help"], env={"COLUMNS": "200"}).output
    shown = set(re.findall(r"--[a-z][a-z-]+", help_text)) - {"--help"}
    assert {name for name in shown if f"| `{name}` |" not in PAGE} == set()
