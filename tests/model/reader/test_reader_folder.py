"""A reader's folder: what is told of it, and what is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sruserve.export.errors import ExportError
from sruserve.export.onnx.export import export_onnx
from sruserve.export.quantize.quantize import quantize
from sruserve.model.errors import CaseError, FolderError
from sruserve.model.folder import load_model, save_model
from sruserve.model.inspect import facts
from sruserve.model.reader.config import ReaderConfig
from sruserve.model.verification.cases import Case
from tests.readers import reader_config, save_reader
from tests.support import random_tensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_reader(tmp_path / "reader", features=("in_question_lemma", "tf", "ner=PER"))


def test_inspect_tells_what_is_around_the_encoders_and_what_requests_need(folder: Path) -> None:
    description = facts(load_model(folder))
    assert description["task"] == "answer"
    assert description["question"] == "2 layers, 6 wide, merged by self_attn"
    assert description["word"] == "words + aligned + features"
    assert description["features"] == "in_question_lemma, tf, ner=PER"
    assert description["needs"] == "lemmas, ner with each request"
    assert description["state"].startswith("none: it reads a whole document with a whole question")


@pytest.mark.parametrize("weights", ["int8", "bf16"])
def test_other_forms_of_a_reader_are_refused(folder: Path, tmp_path: Path, weights: Any) -> None:
    with pytest.raises(ExportError, match="a model of task answer has no graph"):
        export_onnx(folder, tmp_path / "graph.onnx")
    with pytest.raises(ExportError, match="of task answer are not rounded"):
        quantize(folder, tmp_path / "small", weights)
    assert [path.name for path in tmp_path.iterdir()] == ["reader"]


def test_a_case_of_tensors_does_not_verify_a_reader(folder: Path, tmp_path: Path) -> None:
    case = {"tokens": torch.zeros(2, 1, dtype=torch.int64), "h": torch.zeros(2, 1, 20)}
    save_file(case, tmp_path / "case.safetensors")
    with pytest.raises(CaseError, match="answers questions, which no case can verify"):
        Case(tmp_path / "case.safetensors").check_fit(load_model(folder))


def test_a_reader_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    config = reader_config()
    with pytest.raises(FolderError, match="has no vocabulary, and a model of task answer reads"):
        save_model(tmp_path / "m", config, random_tensors(config))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"inputs": ("aligned",)}, "inputs must name words"),
        ({"inputs": ("words", "words")}, "each part at most once"),
        ({"inputs": ("words",), "features": ("tf",)}, "part features of inputs and the field"),
        ({"inputs": ("words", "pos"), "features": ()}, "part pos of inputs and the field pos"),
        ({"features": ("surprise",)}, "feature 'surprise' is unknown"),
        ({"features": ("tf", "tf")}, "names one of them twice"),
        (
            {
                "inputs": ("words", "features", "pos"), "features": ("pos=A",),
                "pos": {"labels": ("A",), "size": 2},
            },
            "feature 'pos=A' and an embedding of the same tags",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_parts_that_do_not_fit_together_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReaderConfig(question_layers=1, **fields)
