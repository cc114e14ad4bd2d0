"""The command line: help that teaches, errors in one line, exit codes."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sruserve import __version__
from sruserve.cli import app
from tests.support import save_random_model


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sruserve", *arguments], capture_output=True, text=True, timeout=120
    )


def test_the_version_is_printed() -> None:
    assert run("--version").stdout == f"sruserve {__version__}\n"


@pytest.mark.parametrize("command", ["serve", "import", "verify", "inspect", "settings"])
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert command in CliRunner().invoke(app, ["--help"]).output
    assert "Usage" in result.output


@pytest.mark.parametrize("arguments", [["--help"], ["import", "--help"], ["--version"]], ids=str)
def test_help_does_not_wait_for_torch(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from sruserve.cli import app\n"
        f"app({arguments}, standalone_mode=False)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_inspect_says_what_a_model_is(tmp_path: Path) -> None:
    model = save_random_model(
        tmp_path / "questions", "classify", vocab_size=40, labels=("a", "b"), layer_norm=True
    )
    result = CliRunner().invoke(app, ["inspect", str(model)])
    assert result.exit_code == 0
    for fact in ("questions", "classify", "16 → 24", "layer_norm", "192 bytes per stream", "a, b"):
        assert fact in result.output
    parameters = 40 * 16 + (16 * 96 + 96 + 32) + (24 * 72 + 96 + 48) + 24 * 2 + 2
    assert f"{parameters:,}" in result.output


@pytest.mark.parametrize("command", ["inspect", "serve"])
def test_a_mistake_is_one_line_without_a_traceback(tmp_path: Path, command: str) -> None:
    result = run(command, str(tmp_path / "nothing"))
    assert result.returncode != 0
    assert "nothing" in result.stderr
    assert "Traceback" not in result.stderr


def test_output_to_a_file_has_no_colours(tmp_path: Path) -> None:
    result = run("inspect", str(save_random_model(tmp_path / "m", vocab_size=9)))
    assert "\x1b" not in result.stdout + result.stderr
    assert "\x1b" not in run("inspect", str(tmp_path / "nothing")).stderr
