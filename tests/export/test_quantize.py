"""`sruserve export quantize`: smaller folders, what they cost, and what is refused."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from typer.testing import CliRunner

from sruserve.cli import app
from sruserve.export.errors import ExportError
from sruserve.export.onnx.export import export_onnx
from sruserve.export.quantize.compare import compare
from sruserve.export.quantize.quantize import Weights, quantize
from sruserve.export.quantize.texts import HeldOut
from sruserve.model.folder import load_model, save_model
from sruserve.model.names import Task
from sruserve.model.network import Network
from tests.model import test_families as families
from tests.server.processes import serving
from tests.support import random_config, random_tensors, save_random_model

DATA = Path(__file__).parent.parent / "data"
DEMO = Path(__file__).parent.parent.parent / "sruserve" / "demo"
LABELS = ("description", "entity", "abbreviation", "human", "location", "number")


@pytest.fixture
def tail(tmp_path: Path) -> Path:
    """A held-out text of Shakespeare."""
    path = tmp_path / "tail.txt"
    path.write_text((DATA / "shakespeare.tail").read_text()[:10_000])
    return path


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """The test questions of TREC, with their labels."""
    lines = [line.split(" ", 1) for line in (DATA / "trec.test").read_text().splitlines()]
    path = tmp_path / "trec.jsonl"
    path.write_text(
        "".join(json.dumps({"text": text, "label": LABELS[int(y)]}) + "\n" for y, text in lines)
    )
    return path


@pytest.mark.parametrize("weights", ["int8", "bf16"])
def test_the_language_model_loses_at_most_a_hundredth_of_a_bit(
    tmp_path: Path, tail: Path, weights: Any
) -> None:
    held_out = HeldOut(text=tail)
    old, new = compare(
        *quantize(DEMO / "shakespeare", tmp_path / "small", weights, held_out), held_out
    )
    assert old.bits_per_character is not None
    assert new.bits_per_character is not None
    assert old.bits_per_character == pytest.approx(2.0, abs=0.2)
    assert new.bits_per_character - old.bits_per_character <= 0.01
    assert new.file_bytes < old.file_bytes * (0.27 if weights == "int8" else 0.52)
    assert new.reading > 0
    assert new.decoding > 0


def test_at_most_one_question_in_a_hundred_changes_its_label(
    tmp_path: Path, questions: Path
) -> None:
    held_out = HeldOut(texts=questions)
    models = quantize(DEMO / "question-type", tmp_path / "small", "int8", held_out)
    old, new = compare(*models, held_out)
    assert len(old.labels) == len(new.labels) == held_out.labelled_count == 500
    assert sum(a != b for a, b in zip(old.labels, new.labels, strict=True)) <= 5
    assert old.correct == 447
    assert new.correct >= 442


def test_a_server_serves_an_int8_model_and_continues_its_streams(tmp_path: Path) -> None:
    quantize(DEMO / "shakespeare", tmp_path / "small", "int8")
    request = {"model": "small", "temperature": 0, "max_tokens": 12}
    with serving(tmp_path / "small") as (client, _):
        whole = client.post("/v1/score", json={"model": "small", "input": "to be or not"}).json()
        first = client.post(
            "/v1/score", json={"model": "small", "input": "to be ", "more": True}
        ).json()["results"][0]
        rest = {"model": "small", "input": "or not", "state": first["state"]}
        second = client.post("/v1/score", json=rest).json()["results"][0]
        total = first["log_likelihood"] + second["log_likelihood"]
        assert total == pytest.approx(whole["results"][0]["log_likelihood"], rel=1e-12)
        replies = [
            client.post("/v1/completions", json=request | {"prompt": prompt}).json()["choices"]
            for prompt in ("ROMEO:", ["ROMEO:", "JULIET:", "KING"])
        ]
    assert replies[0][0]["text"] == replies[1][0]["text"] != ""


@pytest.mark.parametrize("form", families.FORMS)
def test_a_bf16_folder_has_the_bits_of_its_model_in_bfloat16(tmp_path: Path, form: str) -> None:
    options = {"input_size": 6, "hidden_size": 10, **families.FORMS[form]}
    config = random_config("encode", model_type=form.split("-")[0], **options)
    save_model(tmp_path / "m", config, random_tensors(config))
    _, small = quantize(tmp_path / "m", tmp_path / "small", "bf16")
    assert small.config.dtype == small.dtype == "bfloat16"
    x, outputs = torch.randn(9, 6), []
    for model in (load_model(tmp_path / "m", "bfloat16"), small):
        network = model.network
        assert isinstance(network, Network)
        states = network.layout.allocate(1)
        outputs += [*families.run(network, [x], states, [0]), states]
    assert torch.equal(outputs[0], outputs[2])
    assert torch.equal(outputs[1], outputs[3])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_models_of_other_dtypes_become_int8_too(tmp_path: Path, dtype: str) -> None:
    config = random_config("encode").model_copy(update={"dtype": dtype})
    tensors = {k: v.to(getattr(torch, dtype)) for k, v in random_tensors(config).items()}
    save_model(tmp_path / "m", config, tensors)
    _, small = quantize(tmp_path / "m", tmp_path / "small", "int8")
    assert (small.config.weights, small.dtype) == ("int8", "float32")


def test_quantising_twice_changes_nothing(tmp_path: Path) -> None:
    save_random_model(tmp_path / "m", vocab_size=20)
    _, once = quantize(tmp_path / "m", tmp_path / "once", "int8")
    before, twice = quantize(tmp_path / "once", tmp_path / "twice", "int8")
    assert once.digest == before.digest == twice.digest
    assert once.parameters == load_model(tmp_path / "m").parameters


def test_an_onnx_file_has_the_int8_weights_of_its_folder_and_floats_of_bfloat16(
    tmp_path: Path,
) -> None:
    save_random_model(tmp_path / "m", vocab_size=20)
    kinds: dict[Weights, int] = {
        "int8": onnx.TensorProto.UINT8,
        "bf16": onnx.TensorProto.FLOAT,
    }
    for weights, dtype in kinds.items():
        quantize(tmp_path / "m", tmp_path / weights, weights)
        (file,) = export_onnx(tmp_path / weights, tmp_path / f"{weights}.onnx", ["step"])
        model = onnx.load(file)
        properties = {item.key: item.value for item in model.metadata_props}
        assert properties.get("sruserve.weights") == ("int8" if weights == "int8" else None)
        tables = {weight.name: weight.data_type for weight in model.graph.initializer}
        assert tables["embedding.weight"] == tables["output.weight"] == dtype


def classifier(folder: Path, task: Task = "classify", **kw: Any) -> Path:
    return save_random_model(folder, task, labels=("yes", "no"), **kw)


def lines(tmp_path: Path, content: str) -> Path:
    (tmp_path / "texts.jsonl").write_text(content)
    return tmp_path / "texts.jsonl"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no texts"),
        ('{"text": "a"}\n{"label": "yes"}', r"line 2: text: Field required"),
        ("nonsense", r"line 1: value: Invalid JSON"),
        ('{"text": "a", "label": "perhaps"}', "labels that the model does not know, perhaps"),
        ('{"text": "a"}\n{"text": ""}', "has no ids"),
    ],
)
def test_held_out_texts_that_do_not_fit_are_refused_before_anything_is_written(
    tmp_path: Path, content: str, message: str
) -> None:
    model = classifier(tmp_path / "m", vocabulary=[97, 98])
    held_out = HeldOut(texts=lines(tmp_path, content))
    with pytest.raises(ExportError, match=message):
        quantize(model, tmp_path / "small", "int8", held_out)
    assert not (tmp_path / "small").exists()


def test_held_out_data_of_another_task_or_without_a_vocabulary_is_refused(tmp_path: Path) -> None:
    text, out = tmp_path / "text", tmp_path / "small"
    text.write_text("ab")
    texts = lines(tmp_path, '{"text": "a"}')
    model = classifier(tmp_path / "m", vocabulary=[97, 98])
    for held_out, message in (
        (HeldOut(text=text), "--text is for models with task generate; this one has classify"),
        (HeldOut(text=tmp_path / "none", texts=texts), "--text is for models"),
    ):
        with pytest.raises(ExportError, match=message):
            quantize(model, out, "int8", held_out)
    with pytest.raises(ExportError, match="--texts needs a vocabulary"):
        quantize(classifier(tmp_path / "ids", vocab_size=9), out, "int8", HeldOut(texts=texts))
    model = save_random_model(tmp_path / "lm", vocabulary=[97, 98])
    with pytest.raises(ExportError, match=r"cannot read .*none: No such file"):
        quantize(model, out, "int8", HeldOut(text=tmp_path / "none"))
    text.write_bytes(b"\xff")
    with pytest.raises(ExportError, match="is not UTF-8"):
        quantize(model, out, "int8", HeldOut(text=text))
    assert not out.exists()


@pytest.mark.parametrize("content", ["a", "", "xyz"])
def test_a_text_that_cannot_be_scored_is_refused_before_anything_is_written(
    tmp_path: Path, content: str
) -> None:
    model = save_random_model(tmp_path / "lm", vocabulary=[97, 98])
    (tmp_path / "text").write_text(content)
    held_out = HeldOut(text=tmp_path / "text")
    with pytest.raises(ExportError, match=r"too short|has no ids|is refused"):
        quantize(model, tmp_path / "small", "int8", held_out)
    assert not (tmp_path / "small").exists()


def test_the_model_itself_is_not_overwritten(tmp_path: Path) -> None:
    model = save_random_model(tmp_path / "m" / "2", vocab_size=9)
    digest = load_model(model).digest
    for out in (model, model.parent, tmp_path / "m" / "." / "2"):
        with pytest.raises(ExportError, match="is the model itself"):
            quantize(model.parent, out, "int8")
    (tmp_path / "link").symlink_to(model)
    with pytest.raises(ExportError, match="is the model itself"):
        quantize(tmp_path / "link", model, "int8")
    assert load_model(model).digest == digest


def test_the_command_prints_what_it_cost(tmp_path: Path, questions: Path) -> None:
    out = tmp_path / "small"
    arguments = ["export", "quantize", str(DEMO / "question-type"), str(out)]
    result = CliRunner().invoke(app, [*arguments, "--texts", str(questions)])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"wrote {out}: 647,814 parameters, digest ")
    table = {line[:28].strip(): line[28:].split() for line in lines[1:]}
    assert table["bytes of weights"][0] == "2,592,696"
    assert table["labels changed"][-2:] == ["of", "500"]
    assert table["labels right"][0] == "447"
    assert {"whole inputs, steps/s", "one stream, steps/s"} < set(table)
    assert load_model(out).config.weights == "int8"


def test_the_command_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    model = str(save_random_model(tmp_path / "m", vocab_size=9))
    result = CliRunner().invoke(app, ["export", "quantize", model, model])
    assert result.exit_code == 1
    assert "is the model itself" in result.stderr
    assert result.stderr.count("\n") == 1
    result = CliRunner().invoke(app, ["export", "quantize", model, "out", "--weights", "int4"])
    assert result.exit_code == 2


def test_a_model_that_cannot_stream_is_measured_on_whole_inputs_alone(tmp_path: Path) -> None:
    config = random_config("encode", bidirectional=True)
    save_model(tmp_path / "m", config, random_tensors(config))
    old, new = compare(*quantize(tmp_path / "m", tmp_path / "small", "int8"), HeldOut())
    assert old.decoding == new.decoding == 0
    assert old.bits_per_character is None
    assert old.labels == ()
