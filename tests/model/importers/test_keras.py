"""Models of Keras answer as in Keras, in files that Keras itself wrote."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sruserve.kernels import RaggedBatch
from sruserve.model.importers import file_formats
from tests.model.importers.files import agree, answers, imported, refused, run_import

DATA = Path(__file__).parents[2] / "data/keras"
ANSWERS = load_file(DATA / "answers.safetensors")
TASKS = {
    "bare": "encode",
    "before": "regress",
    "classifier": "classify",
    "forecaster": "regress",
    "simple": "classify",
    "stateful": "regress",
    "tagger": "tag",
    "writer": "generate",
}
FILES = sorted(path for path in DATA.glob("*.*5")) + sorted(DATA.glob("*.keras"))


@pytest.mark.parametrize("path", [p for p in FILES if p.stem in TASKS], ids=lambda path: path.name)
def test_a_model_answers_as_in_keras(tmp_path: Path, path: Path) -> None:
    task, name = TASKS[path.stem], path.stem
    options = {"options": {"activation": "none"}} if name == "simple" else {}
    model = imported(tmp_path, path, task, **options)
    ours = answers(model, ANSWERS[f"{name}.x"])
    ours = (
        torch.softmax(ours, -1)
        if task == "generate" and model.config.activation != "softmax"
        else ours
    )
    agree(ours, ANSWERS[f"{name}.y"])


def test_every_file_of_keras_is_tested() -> None:
    assert {path.stem for path in FILES} == {*TASKS, "binary"}


@pytest.mark.parametrize("labels", [None, ["no", "yes"]])
def test_one_sigmoid_is_the_second_of_two_classes(tmp_path: Path, labels: list[str] | None) -> None:
    options = {} if labels is None else {"labels": labels}
    model = imported(tmp_path, DATA / "binary.keras", "classify", **options)
    assert model.labels == tuple(labels or ("0", "1"))
    probability = ANSWERS["binary.y"]
    agree(answers(model, ANSWERS["binary.x"]), torch.cat((1 - probability, probability)))


def test_one_sigmoid_is_one_label_by_itself_if_one_is_named(tmp_path: Path) -> None:
    model = imported(tmp_path, DATA / "binary.keras", "classify", labels=["spam"])
    assert model.config.activation == "sigmoid"
    agree(answers(model, ANSWERS["binary.x"]), ANSWERS["binary.y"])


def test_a_stateful_model_streams_with_the_same_answers(tmp_path: Path) -> None:
    network = imported(tmp_path, DATA / "stateful.keras", "regress").network
    states, x = network.layout.allocate(1), ANSWERS["stateful.x"]
    row = torch.zeros(1, dtype=torch.int64)
    parts = [
        network.hidden(part, RaggedBatch(torch.tensor([0, len(part)]), states, row, row))
        for part in (x[:5], x[5:6], x[6:])
    ]
    agree(network.logits(torch.cat(parts)), ANSWERS["stateful.y"])


def test_the_file_says_at_which_steps_a_regressor_answers(tmp_path: Path) -> None:
    every = imported(tmp_path, DATA / "stateful.keras", "regress").config.regression
    assert every is not None
    assert every.steps == "every"
    last = imported(tmp_path, DATA / "forecaster.keras", "regress").config.regression
    assert last is not None
    assert last.steps == "last"


def test_a_mask_is_noted_because_the_server_skips_no_step(tmp_path: Path) -> None:
    result = run_import(tmp_path, DATA / "classifier.keras", "classify")
    assert "mask_zero: id 0 is padding" in result.output
    assert "send inputs without padding" in result.output


@pytest.mark.parametrize(
    ("name", "task", "options", "problem"),
    [
        ("classifier", "tag", {}, "pools the steps to one row: import it with --task classify"),
        ("tagger", "classify", {}, "answers at every step: import it with --task tag"),
        ("tagger", "encode", {}, "has layers after the recurrent ones"),
        ("tagger", "regress", {}, "ends in a softmax"),
        ("stateful", "generate", {}, "needs an embedding"),
        ("classifier", "pair", {}, "a network of one input"),
        ("classifier", "classify", {"pooling": "mean"}, "pooling is mean, but the file says final"),
        ("classifier", "classify", {"activation": "none"}, "activation is none, but the file says"),
        ("classifier", "classify", {"hidden_size": 4}, "hidden_size is unknown"),
    ],
)
def test_tasks_and_options_that_contradict_the_file_are_refused(
    tmp_path: Path, name: str, task: str, options: dict[str, object], problem: str
) -> None:
    message = refused(tmp_path, DATA / f"{name}.keras", task, options=options)
    assert problem in message


@pytest.mark.parametrize("name", ["model.index", "model.data-00000-of-00001", "checkpoint"])
def test_checkpoints_of_tensorflow_are_refused_with_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\0" * 64)
    assert "save a Keras model with model.save('model.keras')" in refused(
        tmp_path, tmp_path / name, "classify"
    )


def test_a_keras_file_of_any_name_is_recognised(tmp_path: Path) -> None:
    path = tmp_path / "best.weights"
    path.write_bytes((DATA / "forecaster.h5").read_bytes())
    assert file_formats.file_format(path, "auto") == "keras"
    assert file_formats.file_format(path, "torch") is None
