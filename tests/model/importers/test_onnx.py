"""ONNX graphs that PyTorch exported answer as the modules did."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.model.importers.files import agree, answers, imported, refused

DATA = Path(__file__).parents[2] / "data/onnx"
ANSWERS = load_file(DATA / "answers.safetensors")
TASKS = {"forecaster": "regress", "tagger": "tag"}
SCORES = ("all", "cell", "final", "final_new", "h", "last", "max", "mean", "mean_new", "swapped")


def test_every_file_is_tested() -> None:
    assert {path.stem for path in DATA.glob("*.onnx")} == {*SCORES, "binary", *TASKS}


@pytest.mark.parametrize("name", SCORES)
def test_a_classifier_answers_as_in_pytorch(tmp_path: Path, name: str) -> None:
    options = {"activation": "none"}
    model = imported(tmp_path, DATA / f"{name}.onnx", "classify", options=options)
    own = name.removesuffix("_new")
    agree(answers(model, ANSWERS[f"{own}.x"]), ANSWERS[f"{own}.y"])


def test_a_forecaster_of_every_step_answers_as_in_pytorch(tmp_path: Path) -> None:
    model = imported(tmp_path, DATA / "forecaster.onnx", "regress")
    agree(answers(model, ANSWERS["forecaster.x"]), ANSWERS["forecaster.y"])


def test_a_tagger_shows_the_probabilities_of_a_log_softmax(tmp_path: Path) -> None:
    model = imported(tmp_path, DATA / "tagger.onnx", "tag")
    agree(answers(model, ANSWERS["tagger.x"]), ANSWERS["tagger.y"].exp())


def test_one_sigmoid_is_the_second_of_two_classes(tmp_path: Path) -> None:
    model = imported(tmp_path, DATA / "binary.onnx", "classify", labels=["no", "yes"])
    probability = ANSWERS["binary.y"]
    agree(answers(model, ANSWERS["binary.x"]), torch.cat((1 - probability, probability)))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot read"),
        (b"\0" * 100, "does not hold the"),
    ],
)
def test_data_beside_the_model_must_hold_its_numbers(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    shutil.copy(DATA / "final_new.onnx", tmp_path)
    if content is not None:
        (tmp_path / "final_new.onnx.data").write_bytes(content)
    assert problem in refused(tmp_path, tmp_path / "final_new.onnx", "classify")


def test_data_beside_the_model_may_be_no_link(tmp_path: Path) -> None:
    shutil.copy(DATA / "final_new.onnx", tmp_path)
    (tmp_path / "final_new.onnx.data").symlink_to(DATA / "final_new.onnx.data")
    assert "is a link" in refused(tmp_path, tmp_path / "final_new.onnx", "classify")


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    message = refused(tmp_path, DATA / "final.onnx", "classify")
    assert "pip install 'sruserve[onnx]'" in message
