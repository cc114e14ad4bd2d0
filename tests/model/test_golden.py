"""Every golden case, made by the released code, through `sruserve import` and `sruserve verify`."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from sruserve.cli import app

CASES = sorted((Path(__file__).parent.parent / "golden").glob("*/case.json"))
CASES = [case.parent for case in CASES]


def imported(case: Path, folder: Path) -> Path:
    description = json.loads((case / "case.json").read_text())
    options = folder / "options.json"
    window = {"window": description["window"]} if "window" in description else {}
    options.write_text(json.dumps(description["options"] | window))
    arguments = ["import", str(case / "weights.pt"), str(folder / "model"), "--task", "encode"]
    result = CliRunner().invoke(app, [*arguments, "--options", str(options)])
    assert result.exit_code == 0, result.output
    return folder / "model"


def test_the_golden_cases_are_here() -> None:
    assert len(CASES) == 14


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_checkpoint_gives_the_outputs_and_states_of_the_library(
    case: Path, tmp_path: Path
) -> None:
    model = imported(case, tmp_path)
    result = CliRunner().invoke(app, ["verify", str(model), str(case / "io.safetensors")])
    assert result.exit_code == 0, result.output
    assert "agrees" in result.output
    bidirectional = json.loads((model / "config.json").read_text())["rnn"]["bidirectional"]
    assert ("1 run" if bidirectional else "5 runs") in result.output


@pytest.mark.parametrize("name", ["h", "c_n"])
def test_verify_fails_where_a_single_number_differs(name: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "sru26-stack")
    model = imported(case, tmp_path)
    tensors = load_file(case / "io.safetensors")
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[-7] += 3e-5
    save_file(tensors, tmp_path / "case.safetensors")
    arguments = ["verify", str(model), str(tmp_path / "case.safetensors")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert f"DIFFERS ({name}, whole)" in result.output
    assert CliRunner().invoke(app, [*arguments, "--tolerance", "1e-4"]).exit_code == 0


def test_verify_fails_where_the_library_gave_a_number_and_we_do_not(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "sru26-tanh")
    model = imported(case, tmp_path)
    tensors = load_file(case / "io.safetensors")
    tensors["x"] = tensors["x"].clone()
    tensors["x"][3, 1, 0] = float("nan")
    save_file(tensors, tmp_path / "case.safetensors")
    result = CliRunner().invoke(app, ["verify", str(model), str(tmp_path / "case.safetensors")])
    assert result.exit_code == 1
    assert "inf" in result.output


def test_an_option_that_is_wrong_is_seen_in_the_figures(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "sru26-tanh")
    model = imported(case, tmp_path)
    options = json.loads((case / "case.json").read_text())["options"]
    (tmp_path / "options.json").write_text(json.dumps(options | {"use_tanh": False}))
    arguments = ["import", str(case / "weights.pt"), str(model), "--task", "encode"]
    result = CliRunner().invoke(app, [*arguments, "--options", str(tmp_path / "options.json")])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(app, ["verify", str(model), str(case / "io.safetensors")])
    assert result.exit_code == 1
