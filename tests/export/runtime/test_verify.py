"""`sruserve verify` and `inspect` take ONNX files as they take model folders."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner

from sruserve.cli import app
from sruserve.export.onnx.export import export_onnx
from sruserve.export.quantize.quantize import quantize
from sruserve.model.folder import load_model
from sruserve.model.verification.answers import outputs
from tests.support import save_random_model

STEPS, BATCH, WORDS = 9, 3, 6


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_random_model(tmp_path / "native", "generate", vocabulary=list(b"abc \n."))


def case_of(folder: Path, path: Path, **more: Tensor) -> Path:
    """Inputs, and the model's own results for them."""
    network = load_model(folder).network
    tokens = torch.randint(WORDS, (STEPS, BATCH))
    states = network.layout.allocate(BATCH)
    rows = outputs(network, list(tokens.T), states, [[STEPS] * BATCH])
    logits = torch.stack([network.logits(h) for h in rows if h is not None], 1)
    save_file({"tokens": tokens, "logits": logits.contiguous(), **more}, path)
    return path


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


def test_an_export_agrees_with_the_case_of_its_model(model: Path, tmp_path: Path) -> None:
    case = case_of(model, tmp_path / "case.safetensors")
    export_onnx(model, tmp_path / "out")
    for exported in (tmp_path / "out", tmp_path / "out" / "model.onnx"):
        code, output = run("verify", exported, case)
        assert code == 0, output
        assert "agrees" in output
        assert "5 runs" in output


def test_an_export_of_other_weights_differs(model: Path, tmp_path: Path) -> None:
    case = case_of(model, tmp_path / "case.safetensors")
    other = save_random_model(tmp_path / "o", "generate", vocabulary=list(b"abc \n."), seed=1)
    export_onnx(other, tmp_path / "out")
    code, output = run("verify", tmp_path / "out", case)
    assert code == 1
    assert "DIFFERS" in output


def test_outputs_of_layers_are_not_in_a_graph(model: Path, tmp_path: Path) -> None:
    states = {"c_0": torch.zeros(2, BATCH, 24), "h_n": torch.zeros(2, BATCH, 24)}
    case = case_of(model, tmp_path / "case.safetensors", **states)
    export_onnx(model, tmp_path / "out")
    code, output = run("verify", tmp_path / "out", case)
    assert code == 1
    assert "error" in output


def test_inspect_shows_what_computes_an_export(model: Path, tmp_path: Path) -> None:
    export_onnx(model, tmp_path / "out")
    code, output = run("inspect", tmp_path / "out")
    assert code == 0
    assert "ONNX Runtime" in output
    assert load_model(model).digest in output


def test_an_int8_export_is_inspected_and_verified_as_its_folder_is(
    model: Path, tmp_path: Path
) -> None:
    quantize(model, tmp_path / "small", "int8")
    case = case_of(tmp_path / "small", tmp_path / "case.safetensors")
    export_onnx(tmp_path / "small", tmp_path / "out")
    code, output = run("verify", tmp_path / "out", case, "--tolerance", "0.05")
    assert code == 0, output
    code, output = run("inspect", tmp_path / "out")
    assert code == 0
    assert "int8 with a scale per output, multiplied in integers" in output
    assert load_model(tmp_path / "small").digest in output
