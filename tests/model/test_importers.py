"""Checkpoints of the reference's scripts, and everything that is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from sruserve.cli import app
from sruserve.model.config import ModelConfig, SRUConfig
from sruserve.model.folder import load_model
from tests.support import random_tensors

RNN = {"input_size": 8, "hidden_size": 12, "num_layers": 2}
LABELS = ["cold", "warm", "hot"]
WORDS = ["<oov>", "the", "cat", "sat"]


def script_tensors(task: str, names: dict[str, str]) -> dict[str, Tensor]:
    config = ModelConfig(
        architectures=(),
        task=task,  # type: ignore[arg-type]
        dtype="float32",
        vocab_size=4,
        id2label=dict(enumerate(LABELS)) if task == "classify" else {},
        rnn=SRUConfig(**RNN),  # type: ignore[arg-type]
    )
    tensors = random_tensors(config)
    for new, old in names.items():
        tensors = {name.replace(new, old, 1): tensor for name, tensor in tensors.items()}
    return tensors


CLASSIFIER = {"embedding.": "emb_layer.embedding.", "rnn.": "encoder.", "output.": "out."}
ENWIK8 = {"embedding.": "embedding_layer.", "output.": "output_layer."}


def run_import(tmp_path: Path, tensors: Any, *arguments: str, **files: Any) -> Any:
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


@pytest.mark.parametrize("wrapper", ["", "state_dict", "module."])
def test_a_checkpoint_of_the_classification_script_is_imported(
    tmp_path: Path, wrapper: str
) -> None:
    tensors: Any = script_tensors("classify", CLASSIFIER)
    if wrapper == "module.":
        tensors = {f"module.{name}": tensor for name, tensor in tensors.items()}
    elif wrapper:
        tensors = {wrapper: tensors, "epoch": 3}
    result = run_import(
        tmp_path, tensors, "--task", "classify", options={}, vocab=WORDS, labels=LABELS
    )
    assert result.exit_code == 0, result.output
    model = load_model(tmp_path / "out")
    assert model.labels == tuple(LABELS)
    assert model.codec is not None
    assert model.codec.encode("the dog  sat")[0].tolist() == [1, 0, 3]


def test_a_checkpoint_of_the_enwik8_script_is_imported(tmp_path: Path) -> None:
    tensors = script_tensors("generate", ENWIK8)
    result = run_import(
        tmp_path,
        tensors,
        "--task",
        "generate",
        "--format",
        "sru",
        options={},
        vocab=[10, 97, 98, 99],
    )
    assert result.exit_code == 0, result.output
    model = load_model(tmp_path / "out")
    assert model.codec is not None
    assert model.codec.encode("abc\n")[0].tolist() == [1, 2, 3, 0]


def test_training_options_are_accepted_and_dropped(tmp_path: Path) -> None:
    options = {**RNN, "dropout": 0.2, "highway_bias": -3, "rnn_dropout": 0.1, "n_proj": 0}
    result = run_import(
        tmp_path, script_tensors("generate", ENWIK8), "--task", "generate", options=options
    )
    assert result.exit_code == 0, result.output
    assert load_model(tmp_path / "out").codec is None


def refused(tmp_path: Path, tensors: Any, *arguments: str, **files: Any) -> str:
    result = run_import(tmp_path, tensors, *arguments, **files)
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()
    return " ".join(result.output.split())


def test_what_a_state_dict_cannot_tell_is_asked_for(tmp_path: Path) -> None:
    tensors = script_tensors("generate", ENWIK8)
    assert "--options" in refused(tmp_path, tensors, "--task", "generate")


def test_a_task_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    tensors = script_tensors("generate", ENWIK8)
    assert "--task generate" in refused(tmp_path, tensors, "--task", "encode", options={})
    bare = {k.removeprefix("rnn."): v for k, v in tensors.items() if k.startswith("rnn.")}
    assert "--task encode" in refused(tmp_path, bare, "--task", "classify", options={})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden_size": 7}, "hidden_size is 7; the weights say 12"),
        ({"bidirectional": True, "input_size": "wide"}, "input_size"),
        ({"surprise": 1}, "surprise"),
        ({"custom_m": "mine"}, "custom_m"),
        ({"reset_gate": "both"}, "reset_gate"),
        ([], "JSON object"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, options: Any, message: str) -> None:
    tensors = script_tensors("classify", CLASSIFIER)
    assert message in refused(tmp_path, tensors, "--task", "classify", options=options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoder.rnn_lst.1.bias": None}, "rnn.rnn_lst.1.bias is missing"),
        ({"surprise": torch.zeros(2)}, "surprise is not expected"),
        ({"encoder.rnn_lst.1.weight": torch.zeros(12, 37)}, "[12, 37], not [12, 36]"),
        ({"encoder.rnn_lst.0.bias": torch.zeros(3, 3)}, "misshapen"),
    ],
)
def test_missing_extra_and_misshapen_tensors_are_named(
    tmp_path: Path, change: dict[str, Tensor | None], message: str
) -> None:
    tensors = {**script_tensors("classify", CLASSIFIER), **change}
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    assert message in refused(tmp_path, tensors, "--task", "classify", options={})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"labels": ["a", "b"]}, "2 different labels for 3 classes"),
        ({"labels": "a"}, "list of strings"),
        ({"vocab": ["a", "b"]}, "2 entries; the embedding has 4"),
        ({"vocab": ["a", "b", "c", "c"]}, "different words"),
        ({"vocab": ["a", "b", "c", "d"]}, "<oov>"),
    ],
)
def test_labels_and_vocabularies_that_do_not_fit_are_refused(
    tmp_path: Path, files: dict[str, Any], message: str
) -> None:
    tensors = script_tensors("classify", CLASSIFIER)
    assert message in refused(tmp_path, tensors, "--task", "classify", options={}, **files)


class Payload:
    """Unpickling this would leave a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.path, "pwned"))


def test_a_pickle_is_never_executed(tmp_path: Path) -> None:
    tensors: dict[str, Any] = dict(script_tensors("classify", CLASSIFIER))
    tensors["payload"] = Payload(tmp_path / "pwned")
    message = refused(tmp_path, tensors, "--task", "classify", options={})
    assert "not unpickled" in message
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("content", [b"", b"\x80\x04N.", b"not a checkpoint", b"PK\x03\x04"])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    refused(tmp_path, content, "--task", "classify", options={})


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["import", str(tmp_path / "no.pt"), str(tmp_path / "out"), "--task", "encode"]
    )
    assert result.exit_code == 1
    assert "no.pt" in "".join(result.output.split())
