"""`sruserve export onnx`: what is written where, and what is refused."""

import json
import os
import shutil
import stat
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

from sruserve.cli import app
from sruserve.export.errors import ExportError
from sruserve.export.onnx.check import GraphCheck
from sruserve.export.onnx.export import export_onnx
from tests.support import save_random_model


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_random_model(tmp_path / "model", "generate", vocabulary=list(b"abc \n"))


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["export", "onnx", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


def test_a_folder_gets_both_graphs(model: Path, tmp_path: Path) -> None:
    code, output = run(model, tmp_path / "out")
    assert code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model.onnx", "step.onnx"]
    assert output.count("wrote") == 2
    mode = stat.S_IMODE((tmp_path / "out" / "model.onnx").stat().st_mode)
    assert mode == stat.S_IMODE((model / "config.json").stat().st_mode)


@pytest.mark.parametrize("graph", ["step", "sequence"])
def test_a_file_gets_the_graph_that_is_named(model: Path, tmp_path: Path, graph: str) -> None:
    file = tmp_path / "new" / "model.onnx"
    assert run(model, file, "--graph", graph)[0] == 0
    properties = {p.key: p.value for p in onnx.load(file).metadata_props}
    assert properties["sruserve.graph"] == graph
    assert properties["sruserve.task"] == "generate"
    vocabulary = json.loads(properties["sruserve.vocabulary"])
    assert json.loads(vocabulary["bytes.json"]) == list(b"abc \n")
    assert [entry["name"] for entry in json.loads(properties["sruserve.state"])] == ["0.c", "1.c"]
    onnx.checker.check_model(str(file), full_check=True)


def test_a_model_that_cannot_stream_has_no_graph_of_one_step(tmp_path: Path) -> None:
    model = save_random_model(tmp_path / "m", "tag", labels=("a", "b"), bidirectional=True)
    code, output = run(model, tmp_path / "out", "--graph", "both")
    assert code == 1
    assert "no graph of one step: it is bidirectional" in output
    assert not (tmp_path / "out").exists()
    assert run(model, tmp_path / "out")[0] == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.onnx"]


@pytest.mark.parametrize(
    ("out", "arguments", "reason"),
    [
        ("one.onnx", (), "one file, but there are two graphs"),
        ("file", (), "is a file; choose a folder"),
        ("folder.onnx", ("--graph", "step"), "is a folder; choose a file"),
        ("file/model.onnx", ("--graph", "step"), "cannot write"),
        ("pipe.onnx", ("--graph", "step"), "not a regular file"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused(
    model: Path, tmp_path: Path, out: str, arguments: tuple[str, ...], reason: str
) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "folder.onnx").mkdir()
    os.mkfifo(tmp_path / "pipe.onnx")
    code, output = run(model, tmp_path / out, *arguments)
    assert code == 1
    assert reason in output


def test_a_new_export_replaces_the_files_of_an_older_one(model: Path, tmp_path: Path) -> None:
    assert run(model, tmp_path / "out")[0] == 0
    (tmp_path / "out" / "presets.json").write_text("{}")
    assert run(model, tmp_path / "out", "--graph", "sequence")[0] == 0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["model.onnx", "presets.json"]


@pytest.mark.parametrize("version", ["", "1"])
def test_a_folder_that_holds_other_files_is_not_replaced(
    model: Path, tmp_path: Path, version: str
) -> None:
    own = tmp_path / "own"
    shutil.copytree(model, own / version)
    code, output = run(model, own)
    assert code == 1
    assert "so it is not replaced" in output
    assert not (own / "model.onnx").exists()


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    code, output = run(tmp_path, tmp_path / "out")
    assert code == 1
    assert "is not a model folder" in output


def test_a_model_that_is_exported_already_is_refused(model: Path, tmp_path: Path) -> None:
    assert run(model, tmp_path / "out")[0] == 0
    code, output = run(tmp_path / "out", tmp_path / "again")
    assert code == 1
    assert "is an exported model: it has model.onnx, and no config.json" in output


def test_a_graph_that_disagrees_is_not_written(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def disagree(_: GraphCheck) -> None:
        raise ExportError("the graph's logits are up to 0.5 from the network's")

    monkeypatch.setattr(GraphCheck, "step", disagree)
    with pytest.raises(ExportError):
        export_onnx(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_weights_that_no_file_holds_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="an ONNX file holds 1,000"):
        export_onnx(model, tmp_path / "out", max_file_bytes=1000)
