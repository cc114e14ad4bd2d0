"""Import a file that describes its network, and compute its answers."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from typer.testing import CliRunner

from sruserve.cli import app
from sruserve.kernels import single
from sruserve.model.folder import Model, load_model
from tests.model.importers.advice import check_advice


def run_import(tmp_path: Path, file: Path, task: str, **files: Any) -> Any:
    """Run the command. files: JSON options."""
    arguments = ["import", str(file), str(tmp_path / "out"), "--task", task]
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        arguments += [f"--{name}", str(tmp_path / f"{name}.json")]
    return CliRunner().invoke(app, arguments)


def imported(tmp_path: Path, file: Path, task: str, **files: Any) -> Model:
    """The model that the command writes."""
    result = run_import(tmp_path, file, task, **files)
    assert result.exit_code == 0, result.output
    return load_model(tmp_path / "out")


def refused(tmp_path: Path, file: Path, task: str, **files: Any) -> str:
    """The message that the command ends with, which says what to do; it leaves no folder."""
    result = run_import(tmp_path, file, task, **files)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1, result.output
    assert not (tmp_path / "out").exists()
    message = " ".join(result.output.split())
    check_advice(message)
    return message


def answers(model: Model, inputs: Tensor) -> Tensor:
    """What a reply shows for each step of a sequence, (steps, outputs)."""
    states = model.network.layout.allocate(1)
    x = inputs.long() if model.config.vocab_size else inputs.float()
    hidden = model.network.hidden(x, single(states, len(x)))
    if model.config.outputs is None:
        return hidden
    scores = model.network.logits(hidden)
    if model.config.activation == "softmax":
        return torch.softmax(scores, -1)
    return torch.sigmoid(scores) if model.config.activation == "sigmoid" else scores


def agree(ours: Tensor, theirs: Tensor) -> None:
    """To 1e-5, for one row or every step."""
    ours = ours[-1] if theirs.dim() == 1 else ours
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max().item() <= 1e-5
