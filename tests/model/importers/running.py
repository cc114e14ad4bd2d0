"""Run `sruserve import` like a user, and compute with the imported model."""

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


def run_import(tmp_path: Path, tensors: Any, *arguments: str, **files: Any) -> Any:
    """Run the command. tensors: the checkpoint's content, or its bytes. files: JSON options."""
    weights = tmp_path / "weights.pt"
    if isinstance(tensors, bytes):
        weights.write_bytes(tensors)
    else:
        torch.save(tensors, weights)
    options: list[str] = []
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
        options += [f"--{name}", str(tmp_path / f"{name}.json")]
    return CliRunner().invoke(
        app, ["import", str(weights), str(tmp_path / "out"), *arguments, *options]
    )


def imported(tmp_path: Path, tensors: Any, task: str, *arguments: str, **files: Any) -> Model:
    """The model that the command writes."""
    result = run_import(tmp_path, tensors, "--task", task, *arguments, **files)
    assert result.exit_code == 0, result.output
    return load_model(tmp_path / "out")


def refused(tmp_path: Path, tensors: Any, task: str, *arguments: str, **files: Any) -> str:
    """The message that the command ends with, which says what to do; it leaves no folder."""
    result = run_import(tmp_path, tensors, "--task", task, *arguments, **files)
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1, result.output
    assert not (tmp_path / "out").exists()
    message = " ".join(result.output.split())
    check_advice(message)
    return message


def hidden(model: Model, inputs: Tensor) -> Tensor:
    """The stack's outputs, (steps, width), of one sequence from its start."""
    states = model.network.layout.allocate(1, torch.device("cpu"))
    return model.network.hidden(inputs, single(states, len(inputs))).float()


def log_probs(model: Model, tokens: Tensor) -> Tensor:
    """A language model's log-probabilities after each token, (steps, vocabulary)."""
    scores = model.network.logits(hidden(model, tokens))
    return model.network.log_probs(scores)


def agree(ours: Tensor, theirs: Tensor) -> None:
    """To 1e-5 in float32."""
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max().item() <= 1e-5
