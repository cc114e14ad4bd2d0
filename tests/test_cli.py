"""The command line: help that teaches, errors in one line, exit codes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sruserve import __version__
from sruserve.cli import app
from sruserve.server.settings import Settings
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


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "tpu"])
def test_a_device_that_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    model = str(save_random_model(tmp_path / "m", vocab_size=9))
    for result in (
        run("inspect", model, "--device", device),
        run("verify", model, "case.safetensors", "--device", device),
        run("serve", model, "--port", "0", "--device", device),
    ):
        assert result.returncode in (1, 2)
        assert "cuda" in result.stderr + result.stdout
        assert "Traceback" not in result.stderr + result.stdout


def test_float16_is_refused_on_the_cpu(tmp_path: Path) -> None:
    model = str(save_random_model(tmp_path / "m", vocab_size=9))
    for command in (["inspect", model], ["serve", model, "--port", "0"]):
        result = run(*command, "--device", "cpu", "--dtype", "float16")
        assert result.returncode == 1
        assert "set its dtype to bfloat16" in result.stderr + result.stdout


def test_serve_passes_its_options_on_as_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Settings] = []

    def serve(settings: Settings) -> int:
        served.append(settings)
        return 0

    monkeypatch.setattr("sruserve.server.run.serve", serve)
    monkeypatch.setenv("SRUSERVE_FAST", "true")
    for arguments in (["--device", "cuda:1", "--dtype", "float16"], ["--exact"]):
        assert CliRunner().invoke(app, ["serve", *arguments]).exit_code == 0
    told = [(s.device, s.dtype, s.fast) for s in served]
    assert told == [("cuda:1", "float16", True), ("auto", None, False)]


def test_settings_lists_every_variable_with_what_it_may_be() -> None:
    output = CliRunner().invoke(app, ["settings"]).output
    assert "SRUSERVE_DEVICE=auto\n" in output
    assert (
        "SRUSERVE_WORKERS=1\n    Server processes, each with its own engines. (1 to 256)" in output
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"SRUSERVE_STORE": "redis://127.0.0.1:1", "SRUSERVE_STATE_KEYS": "ab" * 32},
            "pip install 'sruserve[redis]'",
        ),
        ({"SRUSERVE_GRPC_PORT": "0"}, "install sruserve[grpc], or set it to off"),
        ({"SRUSERVE_DTYPE": '{"tagger": "bfloat16"}'}, "SRUSERVE_DTYPE names tagger"),
        ({"SRUSERVE_API_KEYS_FILE": "/nowhere"}, "cannot be read: No such file or directory"),
    ],
    ids=["redis", "grpc", "dtype", "keys"],
)
def test_what_a_setting_lacks_is_told_before_anything_is_loaded(
    given: dict[str, str], told: str
) -> None:
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['redis', 'grpc']))  # as where they are not installed\n"
        "from sruserve.cli import app\n"
        "app(['serve', '--port', '0'])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | given, capture_output=True, text=True
    )
    assert result.returncode == 2
    assert told in result.stderr
    assert "computing on" not in result.stderr


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
