"""The command line: useful help, errors in one line, exit codes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sruserve import __version__
from sruserve.cli import app
from sruserve.cli_shared import show_error
from sruserve.model.bundled import BUNDLED
from sruserve.server.repository.discovery import find_models
from sruserve.server.settings import Settings
from tests.support import save_random_model


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sruserve", *arguments], capture_output=True, text=True, timeout=120
    )


def test_the_version_is_printed() -> None:
    assert run("--version").stdout == f"sruserve {__version__}\n"


@pytest.mark.parametrize(
    "command",
    ["serve", "import", "verify", "inspect", "run", "compress", "decompress", "settings", "check"],
)
def test_every_command_explains_itself(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 0
    assert command in CliRunner().invoke(app, ["--help"]).output
    assert "Usage" in result.output


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["import", "--help"], 0),
        (["run", "--help"], 0),
        (["compress", "--help"], 0),
        (["decompress", "--help"], 0),
        (["--version"], 0),
        (["settings"], 0),
        (["serve", "--host", "1:2"], 2),
        (["serve", "nothing"], 2),
        (["check", "http://127.0.0.1:1"], 2),
    ],
    ids=str,
)
def test_help_and_mistakes_do_not_wait_for_torch(arguments: list[str], code: int) -> None:
    program = (
        "import sys\n"
        "from sruserve.cli import app\n"
        "sys.modules['torch'] = None  # an import of it fails from here on\n"
        f"app({arguments})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


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
@pytest.mark.parametrize("command", [["inspect"], ["verify", "case.safetensors"]], ids=str)
def test_a_device_that_is_not_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], device: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    model = str(save_random_model(tmp_path / "m", vocab_size=9))
    result = CliRunner().invoke(app, [command[0], model, *command[1:], "--device", device])
    assert result.exit_code == 1
    assert "cuda" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_server_that_cannot_compute_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    model = str(save_random_model(tmp_path / "m", vocab_size=9))
    result = run("serve", model, "--port", "0", "--device", "cuda:7")
    assert result.returncode == 1
    assert "error: SRUSERVE_DEVICE: cannot compute on cuda:7" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_model_that_cannot_be_loaded_is_one_line_of_the_server_s_own_log(tmp_path: Path) -> None:
    model = save_random_model(tmp_path / "m", vocab_size=9)
    with (model / "model.safetensors").open("ab") as file:
        file.write(b"more")
    result = run("serve", str(model), "--port", "0", "--device", "cpu")
    assert result.returncode == 1
    (line,) = [line for line in result.stderr.splitlines() if "ERROR" in line]
    assert f"ERROR sruserve.server: cannot start: cannot read {model}/model.safetensors" in line
    assert "uvicorn" not in result.stderr


def test_each_worker_that_cannot_compute_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    model = str(save_random_model(tmp_path / "m", vocab_size=9))
    result = run("serve", model, "--port", "0", "--device", "cuda", "--workers", "2")
    assert result.returncode == 1
    assert "error: SRUSERVE_DEVICE: cannot compute on cuda" in result.stderr
    assert "Traceback" not in result.stderr
    assert "uvicorn" not in result.stderr


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--port", "99999"], "SRUSERVE_PORT=99999: should be a whole number from 0 to 65535"),
        (["--port", "http"], "SRUSERVE_PORT=http: should be a whole number from 0 to 65535"),
        (["--workers", "0"], "SRUSERVE_WORKERS=0: should be a whole number from 1 to 256"),
        (
            ["--dtype", "int8"],
            "SRUSERVE_DTYPE=int8: should be float32 or bfloat16 or float16, or a JSON object of "
            "these by model name",
        ),
    ],
    ids=str,
)
def test_a_wrong_option_is_named_with_its_setting_and_the_allowed_values(
    option: list[str], message: str
) -> None:
    result = CliRunner().invoke(app, ["serve", *option])
    assert result.exit_code == 2
    assert result.stderr == f"error: {message}\n"


def test_inspect_says_that_a_folder_holds_no_model(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path, "is not a model folder: it has neither config.json nor model.onnx"),
        (
            tmp_path / "absent",
            "does not exist",
        ),
    ):
        result = CliRunner().invoke(app, ["inspect", str(path)])
        assert result.exit_code == 1
        assert f"{path.name} {reason}" in result.stderr


def test_commands_take_a_bundled_model_by_its_name_unless_a_folder_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "question-type").mkdir()  # without a model
    result = CliRunner().invoke(app, ["inspect", "question-type", "--device", "cpu"])
    assert "description, entity, abbreviation" in result.stdout, result.output
    for command in (
        ["verify", "question-type", "absent.safetensors", "--device", "cpu"],
        ["export", "quantize", "question-type", "small", "--text", "absent.txt"],
    ):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 1
        assert "question-type" not in result.stderr, command  # it is found, and not what is wrong
    result = CliRunner().invoke(
        app, ["export", "state", "sentiment"], input=b"x\n", env={"SRUSERVE_STATE_KEYS": "a" * 64}
    )
    assert "the state is no token" in result.stderr

    save_random_model(tmp_path / "question-type", "classify", vocab_size=9, labels=("a", "b"))
    result = CliRunner().invoke(app, ["inspect", "question-type", "--device", "cpu"])
    assert "a, b" in result.stdout, result.output


@pytest.mark.parametrize("name", ["question-type", "numbers"])
def test_verify_names_a_missing_case_once(tmp_path: Path, name: str) -> None:
    case = tmp_path / "absent.safetensors"
    result = CliRunner().invoke(app, ["verify", str(BUNDLED / name), str(case), "--device", "cpu"])
    assert result.stderr == f"error: cannot read {case}: No such file or directory\n"


@pytest.mark.parametrize("command", [["inspect"], ["verify", "case.safetensors"]], ids=str)
@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")], ids=repr
)
def test_a_model_for_which_there_is_no_memory_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], error: Exception
) -> None:
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr("sruserve.export.runtime.load.load_model", full)
    options = [*command[1:], "--device", "cpu"]
    result = CliRunner().invoke(app, [command[0], str(tmp_path / "m"), *options])
    assert result.exit_code == 1
    assert "cannot load" in result.stderr
    assert result.stderr.count("\n") == 1


def test_float16_is_refused_on_the_cpu(tmp_path: Path) -> None:
    model = str(save_random_model(tmp_path / "m", vocab_size=9))
    result = CliRunner().invoke(app, ["inspect", model, "--device", "cpu", "--dtype", "float16"])
    assert result.exit_code == 1
    assert "set the dtype to bfloat16" in result.stderr


def test_serve_takes_the_names_of_bundled_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Path] = []

    def serve(settings: Settings) -> int:
        found.extend(find_models(settings))
        return 0

    monkeypatch.setattr("sruserve.server.run.serve", serve)
    monkeypatch.chdir(tmp_path)
    arguments = ["serve", "question-type", str(BUNDLED / "entities")]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert found == [BUNDLED / "question-type", BUNDLED / "entities"]


def test_serve_passes_its_options_on_as_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Settings] = []

    def serve(settings: Settings) -> int:
        served.append(settings)
        return 0

    monkeypatch.setattr("sruserve.server.run.serve", serve)
    monkeypatch.setenv("SRUSERVE_FAST", "true")
    for arguments in (["--device", "cuda:1", "--dtype", "float16"], ["--exact"]):
        assert CliRunner().invoke(app, ["serve", *arguments]).exit_code == 0
    chosen = [(s.device, s.dtype, s.fast) for s in served]
    assert chosen == [("cuda:1", "float16", True), ("auto", None, False)]


def test_settings_lists_every_variable_with_what_it_may_be() -> None:
    output = CliRunner().invoke(app, ["settings"]).output
    assert "SRUSERVE_DEVICE=auto\n" in output
    assert (
        "SRUSERVE_WORKERS=1\n    Server processes, each with its own engines. (1 to 256)" in output
    )


def test_settings_shows_a_value_of_the_environment_beside_its_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SRUSERVE_PORT", "9000")
    monkeypatch.setenv("SRUSERVE_BURST", "0")
    monkeypatch.setenv("SRUSERVE_MODELS", "/models")
    monkeypatch.setenv("SRUSERVE_STATE_KEYS", "ab" * 32)
    output = CliRunner().invoke(app, ["settings"]).output
    assert "SRUSERVE_PORT=9000   <- set here; the default is 8000\n" in output
    assert "SRUSERVE_BURST=0\n" in output
    assert "SRUSERVE_MODELS=/models   <- set here; the default is unset\n" in output
    assert "SRUSERVE_STATE_KEYS=(a secret, not shown)   <- set here" in output
    assert "abab" not in output


def test_settings_lists_all_and_names_an_invalid_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SRUSERVE_PORT", "http")
    result = CliRunner().invoke(app, ["settings"])
    assert result.exit_code == 2
    assert "SRUSERVE_PORT=8000\n" in result.stdout
    assert "SRUSERVE_PORT=http: should be a whole number" in result.stderr


@pytest.mark.parametrize(
    ("environment", "message"),
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
def test_what_a_setting_lacks_is_reported_before_anything_is_loaded(
    environment: dict[str, str], message: str
) -> None:
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['redis', 'grpc']))  # as where they are not installed\n"
        "from sruserve.cli import app\n"
        "app(['serve', '--port', '0'])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True
    )
    assert result.returncode == 2
    assert message in result.stderr
    assert "computing on" not in result.stderr


@pytest.mark.parametrize("command", ["inspect", "serve"])
def test_a_mistake_is_one_line_without_a_traceback(tmp_path: Path, command: str) -> None:
    result = run(command, str(tmp_path / "nothing"))
    assert result.returncode != 0
    assert "nothing" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["settings", "inspect", "--version"])
def test_output_that_cannot_be_written_is_one_line(tmp_path: Path, command: str) -> None:
    folders = [save_random_model(tmp_path / "m", vocab_size=9)] if command == "inspect" else []
    arguments = [sys.executable, "-m", "sruserve", command, *map(str, folders)]
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, check=False)
    assert result.returncode == 1
    problem = b"error: the output cannot be written: No space left on device\n"
    assert result.stderr == problem


def test_a_reader_that_leaves_ends_a_command_without_a_word() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as pipe:
        arguments = [sys.executable, "-m", "sruserve", "settings"]
        result = subprocess.run(arguments, stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert (result.returncode, result.stderr) == (1, b"")


def test_output_to_a_file_has_no_colours(tmp_path: Path) -> None:
    result = run("inspect", str(save_random_model(tmp_path / "m", vocab_size=9)))
    assert "\x1b" not in result.stdout + result.stderr
    assert "\x1b" not in run("serve", str(tmp_path / "nothing")).stderr


@pytest.mark.parametrize(
    ("keys", "token", "code", "message"),
    [
        (None, b"x\n", 2, "error: SRUSERVE_STATE_KEYS: set it to the keys of the server"),
        ("short", b"x\n", 2, "error: SRUSERVE_STATE_KEYS: "),
        ("a" * 64, b"x\n", 1, "error: the state is no token; send it as it was"),
        ("a" * 64, b"\xff\xfe", 1, "error: the state is no token; send it as it was"),
        ("a" * 64, b"A" * (1 << 22), 1, "error: the state has 2097152 bytes and may have 1048576"),
    ],
    ids=["unset", "invalid", "set", "bytes", "long"],
)
def test_a_state_is_exported_only_with_keys_and_from_a_token(
    tmp_path: Path, keys: str | None, token: bytes, code: int, message: str
) -> None:
    model = save_random_model(tmp_path / "m", vocab_size=9)
    arguments, env = ["export", "state", str(model)], {"SRUSERVE_STATE_KEYS": keys}
    result = CliRunner().invoke(app, arguments, input=token, env=env)
    assert result.exit_code == code
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_error_shows_what_looks_like_markup_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    text = r"the server said \[/b] :smile: [red] \[link=http://a.example]here[/link]"
    show_error(ValueError(text))
    assert capsys.readouterr().err == f"error: {text}\n"
